"""As much of grpcurl as the pages use: `list`, and one call, by the server's own descriptions."""

import json
import sys

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


def read(path):
    with open(path, "rb") as file:
        return file.read()


def main(arguments):
    options, rest = {}, []
    while arguments:
        word = arguments.pop(0)
        if word == "-plaintext":
            options[word] = True
        elif word.startswith("-"):
            options[word] = arguments.pop(0)
        else:
            rest.append(word)
    target, method = rest
    if "-plaintext" in options:
        channel = grpc.insecure_channel(target)
    else:
        files = [read(options[name]) if name in options else None for name in ("-cacert", "-key", "-cert")]
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(*files))
    database = ProtoReflectionDescriptorDatabase(channel)
    if method == "list":
        print("\n".join(sorted(database.get_services())))
        return
    service, name = method.split("/")
    pool = descriptor_pool.DescriptorPool(database)
    found = pool.FindServiceByName(service).methods_by_name[name]
    request = message_factory.GetMessageClass(found.input_type)()
    reply = message_factory.GetMessageClass(found.output_type)
    json_format.ParseDict(json.loads(options.get("-d", "{}")), request)
    call = channel.unary_unary("/" + method, type(request).SerializeToString, reply.FromString)
    print(json_format.MessageToJson(call(request, timeout=10)))


main(sys.argv[1:])
