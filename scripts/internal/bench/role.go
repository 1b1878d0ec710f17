package bench

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Roles that the measuring executable plays in processes of their own.
const (
	roleEcho     = "echo"      // a bare MCP server
	roleStore    = "store"     // claims and settles through package store
	roleRaw      = "raw-store" // the same rows, SQLite alone
	roleProxy    = "proxy"     // the standard library's reverse proxy
	roleProvider = "provider"  // a scripted provider of models
)

// Role runs one role; args are what follows the word "role" on the command line.
func Role(args []string) int {
	var err error
	switch {
	case len(args) == 1 && args[0] == roleEcho:
		err = runEcho()
	case len(args) == 4 && args[0] == roleStore:
		err = runClaims(args[1], args[2], args[3], storeClaims)
	case len(args) == 4 && args[0] == roleRaw:
		err = runClaims(args[1], args[2], args[3], rawClaims)
	case len(args) == 2 && args[0] == roleProxy:
		err = runProxy(args[1], "")
	case len(args) == 3 && args[0] == roleProxy:
		err = runProxy(args[1], args[2])
	case len(args) == 1 && args[0] == roleProvider:
		err = servePeer(http.HandlerFunc(provide))
	default:
		err = fmt.Errorf("no role %q", args)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		return 1
	}
	return 0
}

type echoInput struct {
	Size int `json:"size"`
}

type echoOutput struct {
	Body string `json:"body"`
}

// runEcho serves one tool as the SDK's documentation shows it.
func runEcho() error {
	server := mcp.NewServer(&mcp.Implementation{Name: "echo", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "echo", Description: "answers with as many bytes as it is asked for"},
		func(_ context.Context, _ *mcp.CallToolRequest, in echoInput) (*mcp.CallToolResult, echoOutput, error) {
			return nil, echoOutput{strings.Repeat("x", in.Size)}, nil
		})
	return server.Run(context.Background(), &mcp.StdioTransport{})
}
