"""The client that openapi-generator writes for Python: a council is asked, read, listed and refused."""

import json
import sys

import openapi_client
from openapi_client.rest import ApiException

configuration = openapi_client.Configuration(host=sys.argv[1], access_token="none")
with openapi_client.ApiClient(configuration, "Accept", "application/json") as client:
    api = openapi_client.DeliberationsApi(client)
    asked = openapi_client.DeliberationRequest(task="Name a colour.", strategy="vote", num_agents=3, seed=7)
    whole = api.create_deliberation(asked, prefer="wait=60").actual_instance
    read = api.get_deliberation(whole.id).actual_instance
    (listed,) = api.list_deliberations(limit=1, after="now").items
    try:
        refused = str(api.get_deliberation("nothing"))
    except ApiException as error:
        refused = error.status
    same = [whole.verdict == read.verdict, whole.id == listed.id]
    print(json.dumps({"status": whole.status, "same": same, "refused": refused}))
