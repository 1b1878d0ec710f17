// Command rig stands real agents up in tmux by hand, and records them.
//
//	rig up [-agent codex@0.171.0 | claude@2.1.332] [-panes 2] [-daemon]   until Ctrl-C
//	rig record claude@2.1.332 [-daemon] [-out DIR] [-overwrite]
//	rig learn claude@2.1.340                             how far a new version may be trusted
//	rig clean                                            sweep rigs of dead owners
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"drawbridge/scripts/internal/learn"
	"drawbridge/scripts/internal/rig"
)

const usage = `usage: rig up     [-agent AGENT@VERSION] [-panes N] [-daemon]
       rig record AGENT@VERSION [-daemon] [-out DIR] [-overwrite]
       rig learn  AGENT@VERSION [-dir DIR] [-keep] [-rules FILE]
       rig clean
AGENT is codex or claude
`

var errUsage = errors.New("see the usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, errUsage), errors.Is(err, flag.ErrHelp):
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "rig: error: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	flags := flag.NewFlagSet("rig "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	log := func(format string, a ...any) { fmt.Fprintf(stderr, "rig: "+format+"\n", a...) }
	daemon := flags.Bool("daemon", false, "let Codex hand the conversation to its background server")
	switch args[0] {
	case "up":
		agent := flags.String("agent", "codex@"+rig.CodexVersions[0], "agent and version")
		panes := flags.Int("panes", 1, "panes to start")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		name, version, err := agentVersion(*agent)
		if err != nil {
			return err
		}
		return rig.Do(ctx, "up", log, func(tb rig.TB) { up(tb, stdout, name, version, *panes, *daemon) })
	case "record":
		out := flags.String("out", "", "directory of the agent's testdata (default shared/agent/testdata/AGENT)")
		overwrite := flags.Bool("overwrite", false, "replace recordings of the same version")
		if len(args) < 2 {
			return errUsage
		}
		if err := flags.Parse(args[2:]); err != nil {
			return err
		}
		name, version, err := agentVersion(args[1])
		if err != nil {
			return err
		}
		if *out == "" {
			root, err := rig.Root()
			if err != nil {
				return err
			}
			*out = filepath.Join(root, "shared", "agent", "testdata", name)
		}
		rec := &rig.Recording{Agent: name, Version: version, Daemon: *daemon, Out: *out, Overwrite: *overwrite}
		err = rig.Do(ctx, "record", log, func(tb rig.TB) { rig.New(tb).Record(rec) })
		for _, path := range rec.Recorded {
			fmt.Fprintln(stdout, path)
		}
		return err
	case "learn":
		dir := flags.String("dir", "", "directory for program, recordings and rules (default below the cache)")
		keep := flags.Bool("keep", false, "judge what was recorded before")
		rules := flags.String("rules", "", "rule `file` to judge by, instead of those that are built in")
		if len(args) < 2 {
			return errUsage
		}
		if err := flags.Parse(args[2:]); err != nil {
			return err
		}
		name, version, err := agentVersion(args[1])
		if err != nil {
			return err
		}
		report, err := learn.Learn(ctx, learn.Options{Agent: name, Version: version, Dir: *dir, Keep: *keep, Rules: *rules, Log: log})
		if err != nil {
			return err
		}
		tell(stdout, report)
		return nil
	case "clean":
		base, err := rig.Base()
		if err != nil {
			return err
		}
		return rig.Sweep(ctx, base)
	}
	return errUsage
}

// agentVersion reads codex@VERSION or claude@VERSION.
func agentVersion(agent string) (name, version string, err error) {
	name, version, ok := strings.Cut(agent, "@")
	if !ok || name != rig.Codex && name != rig.Claude || version == "" {
		return "", "", fmt.Errorf("agent %q: want codex@VERSION or claude@VERSION, for example codex@%s", agent, rig.CodexVersions[0])
	}
	return name, version, nil
}

// tell prints what was learned: each action, and what stands against it.
func tell(stdout io.Writer, r learn.Report) {
	fmt.Fprintf(stdout, "%s %s by the rules of %s\n", r.Agent, r.Version, r.Base)
	for _, action := range learn.Actions {
		verdict := "not proven"
		if r.Tested(action) {
			verdict = "tested"
		}
		fmt.Fprintf(stdout, "  %-10s %s\n", action, verdict)
		for _, p := range r.Failed(action) {
			fmt.Fprintf(stdout, "    %s: %v\n      look at %s\n", p.Name, p.Err, p.File)
		}
	}
	fmt.Fprintf(stdout, "recordings  %s\n", r.Recordings)
	if r.Rules == "" {
		fmt.Fprintf(stdout, "no rules were written: correct a copy of %s until observe and send are proven (docs/testing.md)\n", r.Base)
		return
	}
	fmt.Fprintf(stdout, "rules       %s\nuse them    bridge host-bridge --rules-dir %s\n", r.Rules, filepath.Dir(r.Rules))
}

// up holds panes until the context ends.
func up(tb rig.TB, stdout io.Writer, name, version string, panes int, daemon bool) {
	r := rig.New(tb)
	fmt.Fprintf(stdout, "model server  %s\ntmux socket   %s\n", r.URL, r.Socket)
	for range panes {
		var p *rig.Pane
		if name == rig.Claude {
			p = r.Claude(version, rig.ClaudeOptions{})
		} else {
			p = r.Codex(version, rig.CodexOptions{Daemon: daemon})
		}
		fmt.Fprintf(stdout, "pane          %s  pid %d  home %s  tree %s\n", p.ID, p.PID, p.Home, p.Dir)
	}
	fmt.Fprintf(stdout, "\nlook with     tmux -S %s attach -r\nstop with     Ctrl-C\n", r.Socket)
	<-tb.Context().Done()
}
