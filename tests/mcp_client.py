"""Starts a server of the Model Context Protocol and calls its tools by the protocol's own client (mcp of PyPI), which knows nothing of
memleak and checks each answer against the protocol's types.

usage: tests/mcp_client.py MODE COMMAND [ARGUMENT]…

MODE: `legacy` for revisions with `initialize`, `auto` for the newest that the server has.

Prints a line of JSON about the server; then, for each line of standard input, `[TOOL, ARGUMENTS]`, the text of the answer.
"""

import json
import sys

import anyio
from mcp import Client, MCPError, StdioServerParameters


def tell(**members):
    print(json.dumps(members), flush=True)


async def main():
    mode, command, *arguments = sys.argv[1:]
    async with Client(StdioServerParameters(command=command, args=arguments), mode=mode) as client:
        tools = (await client.list_tools()).tools
        if mode == "legacy":
            await client.send_ping()
        tell(
            revision=client.protocol_version,
            server=client.server_info.name,
            tools=[tool.name for tool in tools],
            read_only=all(tool.annotations.read_only_hint for tool in tools),
        )
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            name, arguments = json.loads(line)
            try:
                result = await client.call_tool(name, arguments)
            except MCPError as error:
                tell(failure=error.error.code)
                continue
            [content] = result.content
            tell(is_error=result.is_error, text=content.text)


anyio.run(main)
