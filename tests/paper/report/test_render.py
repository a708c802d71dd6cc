import base64

from paper.report.render import embed


def test_images_become_data_urls_of_their_kind():
    for image, kind in ((b"\x89PNG...", "png"), (b"<?xml ...", "svg+xml")):
        head, _, body = embed(image).partition(",")
        assert head == f"data:image/{kind};base64" and base64.b64decode(body) == image
