"""Pictures, decoded and encoded anew: without metadata, or what else stood in the file."""

from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps, JpegImagePlugin

from app.inputs.extracted import PICTURE_BYTES_MAX, PIXELS_MAX, Extracted, NotExtracted

JPEG_QUALITY = 95
"""The quality of a JPEG without tables of its own that fit, and of WebP."""

# The modes that an encoder takes as they are. A JPEG with further pictures is an MPO, of which the first remains.
_MODES = {"JPEG": ("L", "RGB"), "WEBP": ("RGB", "RGBA")}


def extract(source: Path, kind: str) -> Extracted:
    """The first picture of a file of a kind such as `PNG`, upright. Raises NotExtracted where it is too large."""
    # The header alone says how many pixels it has; nothing of them is decoded before.
    Image.MAX_IMAGE_PIXELS = None
    with Image.open(source, formats=(kind,)) as image:
        if image.width * image.height > PIXELS_MAX:
            raise NotExtracted("too_many_pixels", f"{image.width} x {image.height}")
        image.load()
        options = _options(image, kind)
        upright = ImageOps.exif_transpose(image)
    transparency = upright.info.get("transparency")
    upright.info = {} if transparency is None else {"transparency": transparency}
    if kind in _MODES and upright.mode not in _MODES[kind]:
        upright = upright.convert("RGBA" if kind == "WEBP" and upright.has_transparency_data else "RGB")
    output = BytesIO()
    try:
        upright.save(output, kind, **options)
    except (OSError, ValueError):
        # It was decoded, so what an encoder lacks is memory.
        raise NotExtracted("file_too_costly") from None
    if output.tell() > PICTURE_BYTES_MAX:
        raise NotExtracted("picture_too_large", f"{output.tell() / (1 << 20):.1f}")
    return Extracted(output.getvalue(), width=upright.width, height=upright.height)


def _options(image: Image.Image, kind: str) -> dict[str, Any]:
    """What keeps the quality of a picture."""
    if isinstance(image, JpegImagePlugin.JpegImageFile) and image.mode in _MODES["JPEG"]:
        sampling = JpegImagePlugin.get_sampling(image)
        return {"qtables": image.quantization} | ({} if sampling == -1 else {"subsampling": sampling})
    return {"quality": JPEG_QUALITY} if kind in _MODES else {}
