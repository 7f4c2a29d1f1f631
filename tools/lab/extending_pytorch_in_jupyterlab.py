"""JupyterLab opens a notebook without changing it.

When a notebook is opened, JupyterLab writes into it what its kernel says of its Python, down to the
patch version, and then takes the notebook for changed, and saves it. A notebook that holds this
record already stays as it is, so this extension of the server adds it to what the server hands out.
"""

from ipykernel.ipkernel import IPythonKernel
from jupyter_server.utils import ensure_async


def _jupyter_server_extension_points():
    return [{"module": __name__}]


def _load_jupyter_server_extension(app):
    get = app.contents_manager.get

    async def get_with_record(path, content=True, *args, **kwargs):
        model = await ensure_async(get(path, content, *args, **kwargs))
        if model["type"] == "notebook" and content:
            metadata = model["content"]["metadata"]
            if metadata.get("kernelspec", {}).get("name") == "python3":
                metadata["language_info"] = IPythonKernel.language_info
        return model

    app.contents_manager.get = get_with_record
