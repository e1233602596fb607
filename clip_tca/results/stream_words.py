"""What a run drew, in words."""

from __future__ import annotations

from clip_tca.results.schema import EvaluationRecord


def stream_words(record: EvaluationRecord) -> list[str]:
    """What was drawn, if not whole domains, shuffled one by one."""
    words, stream = [], record.get("stream")
    if stream and stream["kind"] != "iid":
        words.append("class after class" if stream["gamma"] is None else f"Dirichlet stream γ = {stream['gamma']:g}")
    if stream and (present := stream["classes_present"]):
        where = "" if record["setting"] == "transductive" else " in each batch"
        words.append(
            f"{'–'.join(map(str, dict.fromkeys(present)))} {'class' if present == [1, 1] else 'classes'}{where}"
        )
    if stream and stream["long_tail"] is not None:
        words.append(f"long tail {stream['long_tail']:g}:1")
    if stream and stream["mix_domains"]:
        words.append("domains mixed")
    if unknown := record["data"].get("unknown_classes"):
        words.append(f"{len(unknown)} unknown {'class' if len(unknown) == 1 else 'classes'}")
    return words
