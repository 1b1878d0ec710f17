package learn

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"drawbridge/scripts/internal/rig"
)

// installWait bounds the download of one version, about 400 MB unpacked.
const installWait = 10 * time.Minute

// npmPackages are the packages of the agents.
var npmPackages = map[string]string{rig.Codex: "@openai/codex", rig.Claude: "@anthropic-ai/claude-code"}

// install puts the version into its directory unless the rig has it already. Its
// install scripts are not run: the package ships its program.
func install(ctx context.Context, o Options) error {
	if _, err := rig.ProgramPath(o.Agent, o.Version); err == nil {
		return nil
	}
	pkg := npmPackages[o.Agent] + "@" + o.Version
	o.Log("installing %s into %s", pkg, o.Dir)
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("install %s: %w", pkg, err)
	}
	ctx, cancel := context.WithTimeout(ctx, installWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", o.Dir, "--ignore-scripts", "--no-save", "--no-audit", "--no-fund", "--loglevel=error", pkg)
	cmd.Dir = o.Dir
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install %s: %w: %s", pkg, err, strings.TrimSpace(string(out)))
	}
	if _, err := rig.ProgramPath(o.Agent, o.Version); err != nil {
		return fmt.Errorf("install %s: %w", pkg, err)
	}
	return nil
}
