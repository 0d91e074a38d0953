"""A picture is its pixels alone, upright and within bounds."""

from io import BytesIO
from pathlib import Path
from statistics import fmean
from struct import pack
from zipfile import ZipFile, is_zipfile

import pytest
from PIL import Image, PngImagePlugin

from app.inputs.extracted import PICTURE_BYTES_MAX
from tests.components.inputs.files import Spool, archive, picture, png_header

KINDS = ("PNG", "JPEG", "WEBP", "GIF")
ORIENTATION, GPS, LATITUDE, MAKER = 0x0112, 0x8825, 2, 0x010F


def opened(path: Path) -> Image.Image:
    image = Image.open(BytesIO(path.read_bytes()))
    image.load()
    return image


def difference(image: Image.Image, other: Image.Image) -> float:
    """The mean difference of a channel of a pixel."""
    pairs = zip(image.convert("RGB").tobytes(), other.convert("RGB").tobytes(), strict=True)
    return fmean(abs(left - right) for left, right in pairs)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_picture_keeps_its_pixels_and_its_type(spool: Spool, kind: str) -> None:
    data = picture(kind)
    read = await spool.read(data, "picture.txt", "text/plain")
    assert (read.media_type, read.kind, read.width, read.height) == (f"image/{kind.lower()}", "picture", 64, 48)
    assert read.bytes == read.path.stat().st_size
    image = opened(read.path)
    assert image.format == kind
    assert difference(image, Image.open(BytesIO(data))) <= (2 if kind in ("JPEG", "WEBP") else 0)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("PNG", "1"), ("PNG", "L"), ("PNG", "LA"), ("PNG", "P"), ("PNG", "RGBA"), ("PNG", "I;16"),
     ("JPEG", "L"), ("WEBP", "RGBA")],
)  # fmt: skip
async def test_every_mode_is_read(spool: Spool, kind: str, mode: str) -> None:
    data = BytesIO()
    Image.new(mode, (5, 3), 1).save(data, kind)
    read = await spool.read(data.getvalue())
    assert opened(read.path).size == (5, 3)
    assert difference(opened(read.path), Image.open(data)) <= 1


async def test_colours_of_print_become_those_of_screens(spool: Spool) -> None:
    assert opened((await spool.read(picture("JPEG", "CMYK"))).path).mode == "RGB"


async def test_transparency_stays(spool: Spool) -> None:
    image = Image.new("P", (4, 4), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 1), 1)
    for kind in ("PNG", "GIF"):
        data = BytesIO()
        image.save(data, kind, transparency=0)
        rgba = opened((await spool.read(data.getvalue())).path).convert("RGBA")
        assert rgba.getpixel((0, 0))[3] == 0 and rgba.getpixel((1, 1)) == (0, 0, 255, 255)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
async def test_an_animation_is_its_first_picture(spool: Spool, kind: str) -> None:
    data = BytesIO()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(
        data, kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {})
    )
    image = opened((await spool.read(data.getvalue())).path)
    assert getattr(image, "n_frames", 1) == 1
    assert difference(image, frames[0]) <= 3


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_but_the_picture_remains(spool: Spool, kind: str) -> None:
    exif = Image.Exif()
    exif[MAKER] = "the maker"
    exif.get_ifd(GPS)[LATITUDE] = (47.0, 22.0, 0.0)
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Comment", "the comment")
    texts.add_itxt("XML:com.adobe.xmp", "<x>the packet</x>")
    options = {
        "PNG": {"pnginfo": texts, "exif": exif, "icc_profile": b"the profile"},
        "JPEG": {"exif": exif, "comment": "the comment", "xmp": b"<x>the packet</x>", "icc_profile": b"the profile"},
        "WEBP": {"exif": exif, "xmp": b"<x>the packet</x>", "icc_profile": b"the profile"},
        "GIF": {"comment": b"the comment"},
    }[kind]
    data = picture(kind, **options) + archive("the member")
    assert is_zipfile(BytesIO(data)) and b"the " in data
    read = await spool.read(data)
    written, image = read.path.read_bytes(), opened(read.path)
    assert b"the " not in written and not is_zipfile(BytesIO(written))
    assert not image.getexif() and not image.getexif().get_ifd(GPS)
    assert not {"icc_profile", "xmp", "exif", "comment", "Comment", "XML:com.adobe.xmp"} & image.info.keys()
    with pytest.raises(Exception, match="not a zip"), ZipFile(BytesIO(written)):
        pass


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
async def test_a_picture_is_turned_upright(spool: Spool, kind: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    read = await spool.read(picture(kind, exif=exif))
    assert (read.width, read.height) == (48, 64)
    red, green, _ = opened(read.path).convert("RGB").getpixel((44, 3))
    assert red > 200 and green < 60


@pytest.mark.parametrize(
    "data",
    [
        png_header(100_000, 100_000),
        b"GIF89a" + pack("<HH", 65_535, 65_535) + b"\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\2\2D\1\0;",
        picture("JPEG").replace(pack(">HH", 48, 64), pack(">HH", 65_000, 65_000)),
        picture("PNG", "1", (8_000, 5_001)),
    ],
    ids=["PNG", "GIF", "JPEG", "whole"],
)
async def test_pixels_are_bounded_by_the_header_alone(spool: Spool, data: bytes) -> None:
    refused = await spool.refusal(data)
    assert refused.code == "too_many_pixels"
    assert " x " in refused.detail


async def test_a_picture_of_the_most_pixels_fits_its_child(spool: Spool) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 3
    read = await spool.read(picture("JPEG", "RGB", (8_000, 5_000), exif=exif))
    assert (read.width, read.height) == (8_000, 5_000)


async def test_bytes_of_a_picture_are_bounded(spool: Spool) -> None:
    data = BytesIO()
    Image.effect_noise((3_200, 3_200), 100).save(data, "PNG", compress_level=0)
    assert len(data.getvalue()) > PICTURE_BYTES_MAX
    refused = await spool.refusal(data.getvalue())
    assert refused.code == "picture_too_large"
    assert "MiB" in refused.detail


@pytest.mark.parametrize("kind", KINDS)
async def test_a_picture_that_ends_early_is_refused(spool: Spool, kind: str) -> None:
    data = picture(kind, size=(640, 480))
    refused = await spool.refusal(data[: len(data) // 2])
    assert (refused.code, f"a {kind} picture" in refused.detail) == ("broken_file", True)
