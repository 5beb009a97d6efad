"""json_answer fills in its JSON shape: json_answer_test.py PROGRAM. Skipped (77) without the model."""
import json
import subprocess
import sys

SHAPE = {"city": "string", "mountains": ["string", "string"], "age": "integer", "size": "small|large"}


def run(*words):
    return subprocess.run([sys.argv[1], *words], capture_output=True, stdin=subprocess.DEVNULL, check=False)


def main():
    for shape in ["", "{", "3", '"string"']:
        result = run("--shape", shape)
        if b"fetch_llm.sh" in result.stderr:
            print(result.stderr.decode(), end="", file=sys.stderr)
            sys.exit(77)
        assert result.returncode == 2 and b"--shape must be an object or an array" in result.stderr, result
    result = run("Tell me about Bern.", "--shape", json.dumps(SHAPE))
    assert result.returncode == 0, result
    answer = json.loads(result.stdout)
    assert list(answer) == list(SHAPE), answer
    assert isinstance(answer["city"], str) and isinstance(answer["age"], int) and answer["size"] in ("small", "large"), answer
    assert [type(x) for x in answer["mountains"]] == [str, str], answer
    print(answer)


main()
