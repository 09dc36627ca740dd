"""A server on loopback that answers like the model of a client, from a plan: which tools it is to call, in which order.

It speaks what Claude Code (Messages API of Anthropic, streamed) and Gemini CLI (generateContent, streamed) ask.
"""

import http.server
import json
import re
import threading


class Model:
    """`plans`: by the word that a prompt has as `plan:WORD`, the calls (tool, input) that it makes, one after the other.

    A call may be a function, which is called when it is its turn, and returns the call.
    """

    def __init__(self, plans):
        self.plans = plans
        # What the client told of the calls of a plan, in order.
        self.results = {}
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
                if "enerateContent" in self.path:
                    self.send(model.gemini(asked, "stream" in self.path))
                elif self.path.startswith("/v1/messages/count_tokens"):
                    self.send(("application/json", json.dumps({"input_tokens": 1})))
                elif self.path.startswith("/v1/messages"):
                    self.send(model.claude(asked))
                else:
                    self.send(("application/json", "{}"))

            do_GET = do_HEAD = lambda self: self.send(("application/json", "{}"))

            def send(self, answer):
                kind, text = answer
                body = text.encode()
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, *_):
                # A client that was killed.
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def next_call(self, text, results):
        """The call that follows these results in the plan that a text names. `None`: no more."""
        word = re.search(r"plan:(\w+)", text)
        plan = self.plans.get(word[1], []) if word else []
        if word:
            self.results[word[1]] = results
        if len(results) >= len(plan):
            return None
        call = plan[len(results)]
        return call() if callable(call) else call

    def claude(self, asked):
        first, results = "", []
        for message in asked["messages"]:
            content = message["content"]
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                if part["type"] == "text" and message["role"] == "user":
                    first = first or (part["text"] if "plan:" in part["text"] else "")
                elif part["type"] == "tool_result":
                    results.append(part["content"] if isinstance(part["content"], str) else json.dumps(part["content"]))
        call = self.next_call(first, results) if asked.get("tools") else None
        if call:
            block = {"type": "tool_use", "id": f"toolu_{len(results)}_{id(call)}", "name": call[0], "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
        else:
            block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": "done"}
        message = {
            "id": f"msg_{id(asked)}",
            "type": "message",
            "role": "assistant",
            "model": asked["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        stop = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
        if not asked.get("stream"):
            content = {**block, "input": call[1]} if call else {"type": "text", "text": "done"}
            return "application/json", json.dumps({**message, **stop, "content": [content]})
        events = (
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        )
        return "text/event-stream", "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)

    def gemini(self, asked, is_streamed):
        text, results = "", []
        for content in asked.get("contents", []):
            for part in content.get("parts", []):
                if "functionResponse" in part:
                    results.append(json.dumps(part["functionResponse"]["response"], ensure_ascii=False))
                elif "plan:" in part.get("text", "") and not text:
                    text = part["text"]
        call = self.next_call(text, results) if asked.get("tools") else None
        part = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": "done"}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        used = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        answer = json.dumps({"candidates": [candidate], "usageMetadata": used})
        return ("text/event-stream", f"data: {answer}\n\n") if is_streamed else ("application/json", answer)
