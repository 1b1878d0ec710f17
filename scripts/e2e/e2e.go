// Package e2e holds the journeys: tests that build every program, put real
// agents into real tmux panes, and drive them through a Host over MCP as a user's
// Host does. Only the model behind the agents is scripted.
//
// A journey starts with a world and reads as a story:
//
//	w := newWorld(t)
//	pane := w.codex("0.171.0")
//	sent := w.call("send", args{"terminal_id": w.terminal(pane), "request": "SCN=SAY:done"})
//	message := w.await(1)[0]
//
// When it ends the world stops its Hosts, which must end with 0, and fails the
// test when a program of it is still alive. docs/testing.md says more.
package e2e
