# SPDX-License-Identifier: Apache-2.0
"""The templates of the lab: built when missing or stale, and copies of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from lab.arms import Context, NotRun, Template
from lab.measure import run_good
from lab.plan import Recipe


def describe(ctx: Context, recipe: Recipe, name: str | None = None) -> Template:
    folder = ctx.state / "templates" / (name or recipe.name)
    manifest = json.loads((folder / "manifest.json").read_text())
    return Template(
        label=recipe.label,
        name=name or recipe.name,
        folder=folder,
        guest=ctx.top / recipe.guest,
        vcpus=int(manifest["vcpus"]),
        memory_mib=int(manifest["memory_bytes"]) >> 20,
        command=list(recipe.command),
        manifest=manifest,
    )


def build(ctx: Context, recipe: Recipe) -> Template:
    """That of @recipe; NotRun when its guest was not made."""
    if not (ctx.top / recipe.guest / "initramfs.cpio").exists():
        raise NotRun(f"{recipe.guest} is not there: make guest-lab")
    subprocess.run(
        [str(ctx.top / "scripts/template"), recipe.name, recipe.recipe, recipe.guest],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "THAW_GUEST_DIR": str(ctx.top / recipe.guest)},
    )
    return describe(ctx, recipe)


class Copies:
    """Templates with the same content and files of their own; removed at the end."""

    def __init__(self, ctx: Context, template: Template) -> None:
        self.ctx = ctx
        self.template = template
        self.pack = ctx.work / "copy.pack"
        self.names: list[str] = []

    def make(self, name: str) -> Template:
        thaw = self.ctx.thaw
        if not self.pack.exists():
            run_good(
                [
                    *(thaw, "template", "export", self.template.name, str(self.pack)),
                    "--no-root",
                ]
            )
        self.names.append(name)
        run_good([thaw, "template", "import", name, str(self.pack), "--replace"])
        folder = self.ctx.state / "templates" / name
        template = self.template
        return Template(
            label=template.label,
            name=name,
            folder=folder,
            guest=template.guest,
            vcpus=template.vcpus,
            memory_mib=template.memory_mib,
            command=template.command,
            manifest=json.loads(Path(folder / "manifest.json").read_text()),
        )

    def remove(self) -> None:
        self.pack.unlink(missing_ok=True)
        if self.names:
            run_good([self.ctx.thaw, "template", "rm", *self.names])
        self.names = []
