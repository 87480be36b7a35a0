"""All targets, by name."""

from fuzz import console_targets, node_targets, structured_targets

TARGETS = {
    target.name: target
    for module in (console_targets, node_targets, structured_targets)
    for target in module.TARGETS
}
