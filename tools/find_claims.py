"""Find the claims in source code, and name the place where each is proved.

A claim is made by ``with mha.claim("sentence"):``. The site's builder and the tests both find them here.
"""

import ast
import re
from dataclasses import dataclass

# Calls that raise when they do not hold, so that a body with one of them can fail (beside `assert` itself).
CHECKS = re.compile(r"assert_\w+|raises")


@dataclass(frozen=True)
class Claim:
    """One claim: its sentence (None where it is not a literal string) and whether its body can fail."""

    sentence: str | None
    checked: bool

    @property
    def anchor(self) -> str:
        """The HTML id of the place where the claim is made."""
        return "claim-" + slug(self.sentence or "")


def slug(sentence: str) -> str:
    """Return the sentence in lower case, with a hyphen for everything that is neither letter nor digit."""
    return re.sub(r"[\W_]+", "-", sentence.lower()).strip("-")


def find_claims(source: str) -> list[Claim]:
    """Return the claims of a code cell or module, in the order of the text.

    Lines of IPython (``%…``, ``!…``) are skipped; code that is no Python at all has no claims.
    """
    lines = [
        "pass" if re.match(r"[%!?]", line) else line for line in source.splitlines()
    ]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return []
    claims = []
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if _name_of_call(item.context_expr) == "claim":
                    claims.append((node.lineno, _claim(item.context_expr, node.body)))
    return [claim for _, claim in sorted(claims, key=lambda pair: pair[0])]


def _claim(call: ast.Call, body: list[ast.stmt]) -> Claim:
    argument = call.args[0] if len(call.args) == 1 and not call.keywords else None
    literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    checked = any(_can_fail(node) for statement in body for node in ast.walk(statement))
    return Claim(argument.value if literal else None, checked)


def _can_fail(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)
    return CHECKS.fullmatch(_name_of_call(node)) is not None


def _name_of_call(node: ast.AST) -> str:
    """Return the last name of what is called: "claim" for ``mha.claim(…)``, and "" for everything else."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""
