#!/usr/bin/env bash
# grpcio 1.85.3 rounds a timeout up before it sends it: a call's timeout of an hour and a second is 3,610 s for its
# server, and one of 86,401 s is 86,500 s, so that the server goes on when its client has left off. A timeout of 10^9 s
# is 97,200,000 s, and one of 10^12 s has run out at once.
source "$(dirname "$0")/environment.sh" grpcio==1.85.3
now=$("$python" - <<'END' 2>/dev/null
from concurrent.futures import ThreadPoolExecutor

import grpc


class Tells(grpc.GenericRpcHandler):
    def service(self, call):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: str(context.time_remaining()).encode())


server = grpc.server(ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([Tells()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    for timeout in (3601, 86401, 10**9, 10**12):
        try:
            remaining = float(channel.unary_unary("/service/method")(b"", timeout=timeout))
            print(timeout, round(remaining / 10) * 10)
        except grpc.RpcError as error:
            print(timeout, error.code().name)
server.stop(None)
END
)
seen='3601 3610
86401 86500
1000000000 97200000
1000000000000 DEADLINE_EXCEEDED'
conclude "$seen" "$now" "grpcio 1.85.3: a timeout of 86,401 s is 86,500 s for the server, and 10^12 s run out at once"
