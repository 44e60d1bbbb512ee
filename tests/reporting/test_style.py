"""Groups are told apart, in colours that are read."""

from barter_jax.reporting import style
from barter_jax.reporting.groups import group
from barter_jax.reporting.read import read
from tests.reporting import made


def test_no_two_groups_look_alike(tmp_path):
    runs = [
        read(made.write(tmp_path / f"{method}{i}", made.small(method=method, density=i / 20), 0.5))
        for method in ("barter", "static")
        for i in range(1, 19)
    ]
    (experiment,) = group(runs).experiments
    looks = style.styles(experiment.groups)
    assert len(looks) == 36
    assert len({(look.colour, look.line) for look in looks.values()}) == 36
    assert {looks[g.label].marker for g in experiment.groups if g.method == "barter"} == {"o"}


def test_methods_have_their_own_colour_and_marker():
    colours, markers = zip(*style.METHODS.values(), strict=True)
    assert len(set(colours)) == len(colours) and len(set(markers)) == len(markers)


def test_blend_and_ink():
    assert style.blend("#000000", "#ff8000", 0.5) == "#804000"
    assert style.blend("#000000", "#ffffff", 7) == "#ffffff"
    assert (style.ink("#ffffff"), style.ink("#08519c")) == ("#000000", "#ffffff")
