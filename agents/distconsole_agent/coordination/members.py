"""A node of a run as the coordinator knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distconsole_agent.contract.runspec import NodeSpec
    from distconsole_agent.coordination.conversation import Conversation


class Member:
    """One node; node 0, where the coordinator is, has no conversation.

    Attributes:
        ended: Nothing of the attempt is left there.
        idle: It has no rank left, though what started them may be there.
        lost: It will not be heard of again.
    """

    def __init__(self, spec: NodeSpec, conversation: Conversation | None) -> None:
        self.spec = spec
        self.conversation = conversation
        self.ended = self.idle = self.lost = False

    @property
    def has_everything(self) -> bool:
        """Whether all that it was told has arrived, as far as it can."""
        return self.conversation is None or self.lost or self.conversation.settled

    def post(self, message: dict[str, Any]) -> None:
        """Say something that must arrive, to another node that is not lost."""
        if self.conversation is not None and not self.lost:
            self.conversation.post(message)

    def begin_again(self) -> None:
        """Take that its ranks start anew."""
        self.ended = self.idle = False
