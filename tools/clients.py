"""Clients that nobody here wrote, from PyPI, against a running server: `clients.py http://127.0.0.1:7860`.

openai generates, edits and streams; webuiapi makes pictures from text and from pictures. tools/test.sh installs both.
"""

import base64
import io
import sys
from urllib.parse import urlparse

import openai
import webuiapi
from PIL import Image

address = sys.argv[1]


def picture(b64):
    return Image.open(io.BytesIO(base64.b64decode(b64)))


client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
assert [model.id for model in client.models.list()] == ["default"]
made = client.images.generate(model="default", prompt="a red house by the sea", size="256x256", n=2, extra_body={"steps": 4})
assert len(made.data) == 2 and picture(made.data[1].b64_json).size == (256, 256)

original = picture(made.data[0].b64_json)
file = io.BytesIO()
original.save(file, "PNG")
mask = Image.new("RGBA", (256, 256), (0, 0, 0, 255))
mask.paste((0, 0, 0, 0), (0, 0, 128, 256))
mask_file = io.BytesIO()
mask.save(mask_file, "PNG")
edited = client.images.edit(
    model="default", image=("a.png", file.getvalue()), mask=("m.png", mask_file.getvalue()), prompt="a blue house by the sea", extra_body={"steps": 4}
)
assert picture(edited.data[0].b64_json).size == (256, 256)

events = client.images.generate(model="default", prompt="a tree", stream=True, partial_images=2, extra_body={"steps": 12})
kinds = [event.type for event in events]
assert kinds == ["image_generation.partial_image"] * 2 + ["image_generation.completed"], kinds

try:
    client.images.generate(model="default", prompt="x", size="99999x99999")
    sys.exit("99999x99999 was not refused")
except openai.APIStatusError as error:
    assert error.status_code == 422 and "between" in str(error), error

parts = urlparse(address)
webui = webuiapi.WebUIApi(host=parts.hostname, port=parts.port, sampler="Euler a", steps=4)
assert webui.get_options()["sd_model_checkpoint"] == "default"
assert "Euler a" in [sampler["name"] for sampler in webui.get_samplers()]
webui.set_options({"sd_model_checkpoint": "default"})
result = webui.txt2img(prompt="a red house", width=256, height=256, seed=7, steps=4)
assert result.image.size == (256, 256) and result.info["seed"] == 7
changed = webui.img2img(images=[result.image], prompt="a blue house", seed=7, steps=6, denoising_strength=0.6, width=256, height=256)
assert changed.image.size == (256, 256)
assert webui.get_progress()["progress"] == 0
webui.interrupt()
print(f"openai {openai.__version__} and webuiapi: ok")
