package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"drawbridge/scripts/internal/engine"
	"drawbridge/scripts/internal/image"
)

const (
	treeFolders = 1000
	treeFiles   = 100 // in each
	treeRounds  = 11
	treeLeast   = 0.8

	workerRounds = 20
	workerWarm   = 2
	workerMost   = 1.25
	// workerTurn is what the scripted codex does: it edits a file and thinks for a
	// second, where a real turn takes several.
	workerTurn = "fake: text notes.txt changed\nfake: sleep 1s\nfake: final done\n"
)

// storage takes how many entries a second kitrun storage inspect looks at, beside
// find -printf, which has to ask the same of each; both from start to end.
func storage(ctx context.Context, s *stand) ([]Figure, error) {
	root := s.below("tree")
	for i := range treeFolders {
		dir := filepath.Join(root, strconv.Itoa(i/50), strconv.Itoa(i))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		for j := range treeFiles {
			if err := os.WriteFile(filepath.Join(dir, "file-"+strconv.Itoa(j)), []byte("x"), 0o600); err != nil {
				return nil, err
			}
		}
	}
	entries := float64(treeFolders*treeFiles + treeFolders + treeFolders/50)
	ours, base, err := alternate(treeRounds, 1, func() error {
		out, err := exec.CommandContext(ctx, filepath.Join(s.opts.Bin, "kitrun"), "storage", "inspect", "--root", root,
			"--max-entries", "1000000", "--min-free-bytes", "0").Output()
		if err == nil && !bytes.Contains(out, fmt.Appendf(nil, `"observed_entries":%.0f,`, entries)) {
			err = fmt.Errorf("kitrun saw something else: %s", out)
		}
		return err
	}, func() error {
		return exec.CommandContext(ctx, "find", root, "-mindepth", "1", "-printf", `%s %y\n`).Run()
	})
	if err != nil {
		return nil, err
	}
	rate := func(ms float64) float64 { return entries / ms * 1000 }
	return []Figure{newFigure("storage", "entries/s", treeRounds, rate(ours.median()), rate(base.median())).ratioLeast(treeLeast)}, nil
}

// worker takes the wall time of kitrun worker run, with everything that it checks,
// watches and keeps, beside that of a bare docker run of the same image and command.
func worker(ctx context.Context, s *stand) ([]Figure, error) {
	w, err := s.newWorker(ctx)
	if err != nil {
		return nil, err
	}
	// One run shows the command; it also fills kitrun's memory of the image.
	bare, err := w.command(ctx)
	if err != nil {
		return nil, err
	}
	ours, base, err := alternate(workerRounds, workerWarm, func() error { return w.kitrun(ctx) }, func() error { return w.docker(ctx, bare) })
	if err != nil {
		return nil, err
	}
	return []Figure{newFigure("worker", "ms", workerRounds, ours.median(), base.median()).ratioMost(workerMost)}, nil
}

// A workbench runs workers on the engine of DOCKER_HOST.
type workbench struct {
	*stand
	host   string
	engine *engine.Client
	image  string
	n      int // workspaces so far
}

func (s *stand) newWorker(ctx context.Context) (*workbench, error) {
	w := &workbench{stand: s, host: os.Getenv("DOCKER_HOST")}
	if w.host == "" {
		w.host = engine.DefaultHost
	}
	var err error
	if w.engine, err = engine.NewClient(w.host); err != nil {
		return nil, err
	}
	if w.image, err = fakeImage(ctx, w.engine, s.below("codex")); err != nil {
		return nil, err
	}
	for _, dir := range []string{"worker", "worker/source", "worker/context", "worker/artifacts"} {
		if err := os.MkdirAll(s.below(dir), 0o700); err != nil {
			return nil, err
		}
	}
	// A worker without a network needs a capability all the same.
	for name, text := range map[string]string{"context/request.json": "{}", "capability": strings.Repeat("0a", 32)} {
		if err := os.WriteFile(s.below("worker", name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// fakeImage loads the image whose codex does what its prompt says.
func fakeImage(ctx context.Context, e *engine.Client, codex string) (string, error) {
	sources := image.Sources{Codex: codex, Version: "fake", Tag: image.FakeTag}
	var err error
	if sources.Busybox, err = image.Find("busybox-static", "/bin/busybox", "/usr/bin/busybox"); err != nil {
		return "", err
	}
	if sources.Git, err = image.Find("git", "/usr/bin/git"); err != nil {
		return "", err
	}
	if err := image.BuildFake(ctx, codex); err != nil {
		return "", err
	}
	img, err := image.New(ctx, sources)
	if err != nil {
		return "", err
	}
	return img.ID, img.Load(ctx, e)
}

// workspace makes a fresh one.
func (w *workbench) workspace() (string, error) {
	w.n++
	dir := w.below("worker", "workspace-"+strconv.Itoa(w.n))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(dir, "file-"+strconv.Itoa(i)), bytes.Repeat([]byte("text\n"), 200), 0o600); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// start runs one worker.
func (w *workbench) start(ctx context.Context, turn string) (*exec.Cmd, error) {
	workspace, err := w.workspace()
	if err != nil {
		return nil, err
	}
	options, err := json.Marshal(map[string]any{
		"image": w.image, "workspace": workspace, "sourceRoot": w.below("worker/source"), "contextFile": w.below("worker/context/request.json"),
		"artifactRoot": w.below("worker/artifacts"), "model": "bench-model", "timeoutMs": 60_000, "runId": w.run(), "network": "none",
		"providerProxy":  map[string]any{"baseUrl": "http://host.docker.internal:1", "model": "bench-model"},
		"storageBudget":  map[string]any{"min_free_bytes": 0},
		"workspaceSetup": map[string]any{"prompt": turn},
	})
	if err != nil {
		return nil, err
	}
	file := w.below("worker", "options.json")
	if err := os.WriteFile(file, options, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(w.opts.Bin, "kitrun"), "worker", "run", "--options", file,
		"--capability-file", w.below("worker/capability"), "--store-dir", w.below("worker/store"), "--runtime-dir", w.below("worker/run"),
		"--docker-host", w.host)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it takes its container with it
	return cmd, nil
}

func (w *workbench) run() string { return "bench-" + strconv.Itoa(os.Getpid()) }

func (w *workbench) kitrun(ctx context.Context) error {
	cmd, err := w.start(ctx, workerTurn)
	if err != nil {
		return err
	}
	return said(cmd)
}

// said runs a command and puts its last words into the error.
func said(cmd *exec.Cmd) error {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// A container is what of a worker's goes into a bare one.
type container struct {
	Config struct {
		Entrypoint, Cmd, Env []string
		WorkingDir           string
	}
}

// command runs a worker and asks the engine meanwhile what it was given to do.
func (w *workbench) command(ctx context.Context) (c container, err error) {
	cmd, err := w.start(ctx, "fake: sleep 2s\n")
	if err != nil {
		return c, err
	}
	if err := cmd.Start(); err != nil {
		return c, err
	}
	filter := url.QueryEscape(`{"label":["kontour.worker.run=` + w.run() + `"]}`)
	err = until(ctx, patience, "the worker's container is there", func() (bool, error) {
		var found []struct{ ID string }
		if err := w.engine.Get(ctx, "/containers/json?filters="+filter, &found); err != nil || len(found) == 0 {
			return false, err
		}
		return true, w.engine.Get(ctx, "/containers/"+found[0].ID+"/json", &c)
	})
	return c, errors.Join(err, cmd.Wait())
}

// docker runs the command bare: no bounds, no checks, the image's own root.
func (w *workbench) docker(ctx context.Context, c container) error {
	workspace, err := w.workspace()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%d", w.run(), w.n)
	args := []string{"--host", w.host, "run", "--rm", "--interactive", "--name", name, "--network", "none", "--workdir", c.Config.WorkingDir,
		"--volume", workspace + ":/workspace", "--volume", w.below("worker/source") + ":/treatment:ro",
		"--volume", w.below("worker/context/request.json") + ":/context/request.json:ro", "--entrypoint", c.Config.Entrypoint[0]}
	for _, e := range c.Config.Env {
		args = append(args, "--env", e)
	}
	args = append(append(append(args, w.image), c.Config.Entrypoint[1:]...), c.Config.Cmd...)
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Stdin = strings.NewReader(workerTurn)
	cmd.Stdout = io.Discard
	cmd.WaitDelay = time.Second
	if err := said(cmd); err != nil {
		calls, done := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer done()
		_, gone := w.engine.Call(calls, http.MethodDelete, "/containers/"+name+"?force=1", nil)
		return errors.Join(err, gone)
	}
	return nil
}
