#!/usr/bin/env bash
# protobuf 7.36.2: messages compare floating point by its bits: two that hold NaN are equal, and a message with a list
# of 0.0 differs from a message with -0.0, though the lists themselves, outside of their messages, say the opposite of
# both. So does protobuf's implementation in plain Python for messages.
source "$(dirname "$0")/environment.sh" protobuf==7.36.2
cat >"$folder/compare.py" <<'END'
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import api_implementation

file = descriptor_pb2.FileDescriptorProto(name="weights.proto", syntax="proto3")
file.message_type.add(name="Weights").field.add(name="values", number=1, label=3, type=2)
pool = descriptor_pool.DescriptorPool()
pool.Add(file)
Weights = message_factory.GetMessageClass(pool.FindMessageTypeByName("Weights"))
for ours, theirs in (("nan", "nan"), ("0.0", "-0.0")):
    one, other = Weights(values=[float(ours)]), Weights(values=[float(theirs)])
    print(api_implementation.Type(), ours, one == other, list(one.values) == list(other.values))
END
now=$("$python" "$folder/compare.py"; PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python "$python" "$folder/compare.py")
seen='upb nan True False
upb 0.0 False True
python nan False False
python 0.0 True True'
conclude "$seen" "$now" "protobuf 7.36.2: messages with NaN are equal, and messages with 0.0 and -0.0 are not"
