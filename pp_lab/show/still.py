"""A picture that stands still: shown as a PNG whose alt text is the object's repr."""

import base64
import html


class Still:
    """What has a `png`, bytes, and says in its repr what is seen."""

    def save(self, path):
        """Write the picture as a PNG file."""
        with open(path, "wb") as file:
            file.write(self.png)

    def _repr_mimebundle_(self, include=None, exclude=None):
        alt = html.escape(repr(self), quote=True)
        picture = base64.b64encode(self.png).decode()
        return {
            "text/plain": repr(self),
            "text/html": f'<img alt="{alt}" src="data:image/png;base64,{picture}" '
            'style="max-width:100%;height:auto">',
        }
