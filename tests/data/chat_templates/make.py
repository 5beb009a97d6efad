# Needs trl==1.16.0, the source of llama-cpp-python==0.3.36 and the repositories huggingface.js (August 2026) and
# ardanlabs/jinja (May 2026; unpacked, only their files are used) and jinja2 (in a virtual environment): writes cases.json, chat templates from models' files with conversations and Jinja's output with
# transformers' settings; null if the template refuses. Templates with "known" false must not be recognised.
#
#   python make.py TRL/chat_templates LLAMA_CPP_PYTHON/vendor/llama.cpp HUGGINGFACE_JS/packages ARDANLABS_JINJA/testdata/templates
import ast
import datetime
import json
import pathlib
import re
import sys

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

import texts

HERE = pathlib.Path(__file__).parent
ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate "
             "user/assistant/user/assistant/...') }}{% endif %}")
ONLY = "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"


def old_mistral(behind):
    return ("{{ bos_token }}{% for message in messages %}" + ALTERNATE + "{% if message['role'] == 'user' %}{{ '[INST] ' + "
            "message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token" +
            behind + "}}" + ONLY)


MISTRAL_HEAD = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
"""
MISTRAL_2024 = MISTRAL_HEAD + r"""
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\n\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token}}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported, with the exception of an initial optional system message!') }}
    {%- endif %}
{%- endfor %}
"""
MISTRAL_03 = MISTRAL_HEAD.replace("'", '"') + r"""{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- This block checks for alternating user/assistant messages, skipping tool calling messages #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""


LLAMA_2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
           "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
           "{% for message in loop_messages %}" + ALTERNATE + "{% if loop.index0 == 0 and system_message != false %}{% set content "
           "= '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = "
           "message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + "
           "' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}"
           "{% endfor %}")
PHI_35 = ("{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + "
          "message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + "
          "'<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}"
          "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}")
ZEPHYR = "".join(line + "\n" for line in [
    "{% for message in messages %}",
    "{% if message['role'] == 'user' %}", "{{ '<|user|>\n' + message['content'] + eos_token }}",
    "{% elif message['role'] == 'system' %}", "{{ '<|system|>\n' + message['content'] + eos_token }}",
    "{% elif message['role'] == 'assistant' %}", "{{ '<|assistant|>\n'  + message['content'] + eos_token }}",
    "{% endif %}", "{% if loop.last and add_generation_prompt %}", "{{ '<|assistant|>' }}", "{% endif %}"]) + "{% endfor %}"


def first_qwen3(text):
    """Qwen 3's first template, of April 2025, made from its successor."""
    return replaced(text, [
            (' and message.content is string and not(', ' and not('),
            ("""    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
""", ""),
            ("'\\n' + content + '<|im_end|>' + '\\n'", "'\\n' + message.content + '<|im_end|>' + '\\n'"),
            ("        {%- set reasoning_content = '' %}\n",
             "        {%- set content = message.content %}\n        {%- set reasoning_content = '' %}\n"),
            ("reasoning_content is string", "reasoning_content is defined and message.reasoning_content is not none"),
            ("if '</think>' in content", "if '</think>' in message.content"),
            ("""                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
""", """                {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
                {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
"""),
            ("{{- content }}", "{{- message.content }}")])


OLMO_2 = ("{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + "
          "message['content'] + '\\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}"
          "{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\\n'  + message['content'] + "
          "eos_token + '\\n' }}{% else %}{{ '<|assistant|>\\n'  + message['content'] + eos_token }}{% endif %}{% endif %}"
          "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}")
PHI_4_MINI = ("{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is "
              "not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' "
              "+ '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}")


def replaced(text, pairs):
    for old, new in pairs:
        if text.count(old) != 1:
            raise ValueError(old)
        text = text.replace(old, new)
    return text


def deepseek_v3(text):
    """DeepSeek V3's template, of December 2024, made from that of R1's distilled models."""
    return replaced(text, [
        ("system_prompt='')", "system_prompt='', is_first_sp=true)"),
        ("{% set ns.system_prompt = message['content'] %}",
         "{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = "
         "false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}"),
        ("{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] "
         "%}{% endif %}{{'<\uff5cAssistant\uff5c>' + content + ",
         "{{'<\uff5cAssistant\uff5c>' + message['content'] + "),
        ("<think>\\n", "")])


def ministral3_of_unsloth(text):
    """The template in unsloth's files of Ministral 3 8B, made from that of 14B."""
    begin = text.index("        {%- if (message['content'] is none or message['content'] == ''")
    end = text.index("{%- endif %}\n", begin) + len("{%- endif %}\n")
    return replaced(text[:begin] + text[end:], [
        ("Ministral-3-14B-Instruct-2512", "Ministral-3-8B-Instruct-2512"),
        ("""{{- message['content'] }}
        {%- elif message['content'] | length > 0 %}""", """{{- message['content'] }}
        {%- elif message['content'] is iterable and message['content'] | length > 0 %}"""),
        ("message['role'] + '.')", "message['role'])")])


def turns(*contents, system=None):
    result = [{"role": "system", "content": system}] if system else []
    return result + [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]


THOUGHT = "<think>\nIt is 4.\n</think>\n\nFour."
CONVERSATIONS = [
    turns("Hi"),
    turns("  Hi \n"),
    turns("Hi", system="Be brief."),
    turns("Hi", " Hello ", "Bye"),
    turns("Hi", "Hello", "Bye", "\nSee you.\n", "Wait", system=" Be brief. "),
    turns("2+2?", THOUGHT, "Sure?"),
    turns("2+2?", THOUGHT),
    turns("2+2?", "Four."),
    turns("2+2?", "I think</think>\n so</think>\nFour.", "3+3?", "<think>\n\n</think>\n\nSix.", "Well"),
    turns("Hi", "Hello", "<tool_response>4</tool_response>", THOUGHT),
    turns("Hi", "A") + [{"role": "assistant", "content": THOUGHT}, {"role": "assistant", "content": "C"}],
    [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Hi"}],
    turns("Hi") + turns("Yo"),
    turns("Hi") + [{"role": "system", "content": "x"}],
    [{"role": "system", "content": ""}, *turns("Hi")],
    turns("Hi", "", "Bye"),
]
# Templates that drop a system message after the first message, or write it at the beginning.
DROPS_SYSTEM = ["llama2", "aya_expanse", "command_r", "deepseek_v3", "deepseek_r1", "deepseek_r1_distill", "gpt_oss",
                "cohere_command_r", "cohere_command_r_plus", "command_r7b", "command_r7b_arabic", "command_a", "tiny_aya",
                "deepseek_r1_tools", "deepseek_r1_distill_2", "deepseek_r1_0528", "deepseek_v3_1", "smollm3",
                "smollm3_undated", "phi4_mini_reasoning", "nemotron_mini", "olmo3_1", "olmo3_thinking"]
DROPS_EVERY_SYSTEM = ["phi3_medium", "phi4_reasoning"]
REPEATS_EMPTY_SYSTEM = ["tiny_aya"]
DROPS_FRAME_OF_EMPTY = ["exaone4", "seed_oss"]  # of an empty answer
DATED = ["gpt_oss", "granite3_1", "granite3_2", "granite3_3", "granite3_3_first", "llama3_2", "smollm3"]  # of other templates, the default date
DATE = datetime.date(2026, 3, 5)


def main():
    folder = pathlib.Path(sys.argv[1])
    llama_cpp = pathlib.Path(sys.argv[2])
    trl = lambda name: (folder / f"{name}.jinja").read_text(encoding="utf-8")
    of_maths = trl("qwen2_5").replace("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
                                      "Please reason step by step, and put your final answer within \\\\boxed{}.")
    llama = lambda name: (llama_cpp / "models/templates" / f"{name}.jinja").read_text(encoding="utf-8")
    llama_tests = (llama_cpp / "tests/test-chat-template.cpp").read_text(encoding="utf-8")

    def in_llama_tests(name):
        found = re.search(re.escape(f'/* .name= */ "{name}"') + r'.*?/\* \.template_str= \*/ (?:U8C\()?("(?:[^"\\]|\\.)*")',
                          llama_tests, re.DOTALL)
        return ast.literal_eval(found[1])

    javascript = pathlib.Path(sys.argv[3])
    of_ollama = (javascript / "ollama-utils/src/chat-template-automap.ts").read_text(encoding="utf-8")
    of_tests = (javascript / "jinja/test/e2e.test.js").read_text(encoding="utf-8")

    def in_javascript(name):
        """The template of a model, the name of which ollama's library has or a test."""
        if "/" in name:
            return ast.literal_eval(re.search(re.escape(f'"{name}": {{') + r"\s*chat_template:\s*(.*),\n", of_tests)[1])
        return ast.literal_eval(re.search(re.escape(f'model: "library/{name}"') + r",\s*gguf: (.*),\n", of_ollama)[1])

    ministral3 = (pathlib.Path(sys.argv[4]) / "Ministral-3-14B-Instruct-2512-Q4_0.jinja").read_text(encoding="utf-8")
    glm4 = in_llama_tests("ChatGLM4")
    deepseek = ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>")
    granite = ("<|end_of_text|>", "<|end_of_text|>")
    cohere = ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>")
    known = {
        "qwen2_5": (trl("qwen2_5"), "", "<|im_end|>"), "qwen2_5_math": (of_maths, "", "<|im_end|>"),
        "qwen3_instruct_2507": (trl("qwen3_instruct_2507"), "", "<|im_end|>"), "qwen3": (trl("qwen3"), "", "<|im_end|>"),
        "qwen3_2025_04": (first_qwen3(trl("qwen3")), "", "<|im_end|>"),
        "gemma": (trl("gemma"), "<bos>", "<eos>"), "llama3": (trl("llama3"), "<|begin_of_text|>", "<|eot_id|>"),
        "mistral_0_1": (old_mistral(" + ' ' "), "<s>", "</s>"), "mistral_0_2": (old_mistral(""), "<s>", "</s>"),
        "mistral_2024": (MISTRAL_2024, "<s>", "</s>"), "mistral_0_3": (MISTRAL_03, "<s>", "</s>"),
        "llama3_1": (trl("llama3_1"), "<|begin_of_text|>", "<|eot_id|>"),
        "llama3_2": (trl("llama3_2"), "<|begin_of_text|>", "<|eot_id|>"), "gemma3": (trl("gemma3"), "<bos>", "<eos>"), "llama2": (LLAMA_2, "<s>", "</s>"),
        "phi3": (trl("phi3"), "", "<|endoftext|>"), "phi3_5": (PHI_35, "", "<|endoftext|>"), "zephyr": (ZEPHYR, "<s>", "</s>"),
        "mistral_nemo": (llama("mistralai-Mistral-Nemo-Instruct-2407"), "<s>", "</s>"),
        "mistral_large_2411": (in_llama_tests("mistralai/Mistral-Large-Instruct-2411 (mistralai 'v7' template)"), "<s>", "</s>"),
        "phi4": (in_llama_tests("phi-4"), "", "<|im_end|>"), "phi4_mini": (PHI_4_MINI, "", "<|endoftext|>"),
        "aya_expanse": (trl("cohere"), *cohere), "command_r": (in_llama_tests("CohereForAI/c4ai-command-r-plus"), *cohere),
        "deepseek_v2": (in_llama_tests("DeepSeek-V2"), *deepseek), "deepseek_v3": (deepseek_v3(trl("deepseek_r1_distill")), *deepseek),
        "deepseek_r1": (trl("deepseekv3"), *deepseek), "deepseek_r1_distill": (trl("deepseek_r1_distill"), *deepseek),
        "granite3_0": (in_llama_tests("ibm-granite/granite-3.0-8b-instruct"), *granite),
        "granite3_3": (llama("ibm-granite-granite-3.3-2B-Instruct"), *granite),
        "granite4_0": (llama("ibm-granite-granite-4.0"), *granite), "granite4_1": (llama("ibm-granite-granite-4.1"), *granite),
        "olmo2": (OLMO_2, "<|endoftext|>", "<|endoftext|>"), "glm4": (glm4, "", "<|endoftext|>"),
        "glm4_2024": (replaced(glm4, [("<|assistant|>\n", "<|assistant|>")]), "", "<|endoftext|>"),
        "lfm2": (trl("lfm2"), "<|startoftext|>", "<|im_end|>"), "lfm2_v2": (trl("lfm2_v2"), "<|startoftext|>", "<|im_end|>"),
        "gpt_oss": (trl("gptoss"), "<|startoftext|>", "<|return|>"),
        "qwen2_5_small": (in_javascript("qwen2.5:0.5b"), "", "<|im_end|>"),
        "qwen3_thinking": (in_javascript("qwen3-next:80b"), "", "<|im_end|>"),
        "qwen3_coder": (in_javascript("qwen3-coder:30b"), "", "<|im_end|>"), "qwen3_coder_2": (llama("Qwen3-Coder"), "", "<|im_end|>"),
        "stable_code": (in_javascript("stable-code:3b"), "", "<|endoftext|>"),
        "olmo3_1": (texts.OLMO_3_1, "", "<|endoftext|>"), "olmo3_thinking": (texts.OLMO_3_THINKING, "", "<|endoftext|>"),
        "tulu3": (in_javascript("tulu3:70b"), "<|begin_of_text|>", "<|end_of_text|>"),
        "smollm3": (in_javascript("HuggingFaceTB/SmolLM3-3B"), "", "<|im_end|>"),
        "smollm3_undated": (llama("HuggingFaceTB-SmolLM3-3B"), "", "<|im_end|>"),
        "lfm2_5": (trl("lfm2_2_5"), "<|startoftext|>", "<|im_end|>"), "lfm2_5_v2": (trl("lfm2_2_5_v2"), "<|startoftext|>", "<|im_end|>"),
        "lfm2_5_instruct": (llama("LFM2.5-Instruct"), "<|startoftext|>", "<|im_end|>"),
        "llama3_1_nemotron": (in_javascript("nemotron:70b"), "<|begin_of_text|>", "<|eot_id|>"),
        "nemotron_mini": (in_javascript("nemotron-mini:4b"), "<s>", "</s>"), "gemma3_small": (in_javascript("gemma3:1b"), "<bos>", "<eos>"),
        "phi3_medium": (in_javascript("phi3:14b"), "<s>", "<|endoftext|>"), "phi4_2": (texts.PHI_4, "", "<|im_end|>"),
        "phi4_reasoning": (in_javascript("phi4-reasoning:14b"), "", "<|im_end|>"),
        "phi4_mini_reasoning": (in_javascript("phi4-mini-reasoning:3.8b"), "", "<|endoftext|>"),
        "mixtral_8x22": (in_javascript("mixtral:8x22b"), "<s>", "</s>"), "mistral_small": (in_javascript("mistral-small:24b"), "<s>", "</s>"),
        "ministral3": (ministral3, "<s>", "</s>"), "ministral3_unsloth": (ministral3_of_unsloth(ministral3), "<s>", "</s>"),
        "ministral3_reasoning": (llama("mistralai-Ministral-3-14B-Reasoning-2512"), "<s>", "</s>"),
        "cohere_command_r": (in_javascript("command-r:35b"), *cohere), "cohere_command_r_plus": (in_javascript("command-r-plus:104b"), *cohere),
        "command_r7b": (in_javascript("command-r7b:7b"), *cohere), "command_r7b_arabic": (in_javascript("command-r7b-arabic:7b"), *cohere),
        "command_a": (in_javascript("command-a:111b"), *cohere), "tiny_aya": (trl("cohere2"), *cohere),
        "deepseek_r1_tools": (in_javascript("r1-1776:671b"), *deepseek),
        "deepseek_r1_distill_2": (in_javascript("deepseek-r1:8b"), *deepseek), "deepseek_r1_0528": (in_javascript("deepseek-r1:latest"), *deepseek),
        "deepseek_v3_1": (in_javascript("deepseek-v3.1:latest"), *deepseek),
        "granite3_1": (in_javascript("granite3.1-moe:1b"), *granite), "granite3_2": (in_javascript("granite3.2:8b"), *granite),
        "granite3_3_first": (in_javascript("granite3.3:2b"), *granite),
        "falcon3": (texts.FALCON_3, "", "<|endoftext|>"),
        "falcon2": (in_javascript("falcon2:11b"), "", "<|endoftext|>"), "glm4_tools": (in_javascript("glm4:9b"), "", "<|endoftext|>"),
        "exaone4": (texts.EXAONE_4, "[BOS]", "[|endofturn|]"), "seed_oss": (llama("ByteDance-Seed-OSS"), "<seed:bos>", "<seed:eos>")}
    unknown = ["qwen2_5_vl", "gemma_training"]
    cases = [case(name, *known[name]) for name in known]
    cases += [{"name": name, "template": trl(name), "known": False} for name in unknown]
    rows = ",\n".join(json.dumps(one, ensure_ascii=True, separators=(",", ":")) for one in cases)
    (HERE / "cases.json").write_text("[\n" + rows + "\n]\n", encoding="utf-8")


class Generation(Extension):
    """The tag around what a model wrote, which training uses."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller):
        return caller()


def case(name, template, bos, eos):
    def fail(text):
        raise TemplateError(text)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = json.dumps
    environment.globals["raise_exception"] = fail
    if name in DATED:
        environment.globals["strftime_now"] = DATE.strftime
    compiled = environment.from_string(template)
    texts = []
    for messages in CONVERSATIONS:
        first = 0 if name in DROPS_EVERY_SYSTEM else 1
        drops = name in DROPS_SYSTEM + DROPS_EVERY_SYSTEM
        repeats = name in REPEATS_EMPTY_SYSTEM and messages[0] == {"role": "system", "content": ""}
        drops_frame = name in DROPS_FRAME_OF_EMPTY and {"role": "assistant", "content": ""} in messages
        if repeats or drops_frame or drops and "system" in [message["role"] for message in messages[first:]]:
            texts.append({"messages": messages, "text": None})  # the template silently drops or moves it
            continue
        try:
            text = compiled.render(messages=messages, tools=None, documents=None, bos_token=bos, eos_token=eos, add_generation_prompt=True)
        except TemplateError:
            text = None
        texts.append({"messages": messages, "text": text})
    return {"name": name, "template": template, "known": True, "bos": bos, "eos": eos, "texts": texts}


if __name__ == "__main__":
    main()
