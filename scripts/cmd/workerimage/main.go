// Command workerimage builds the image of the worker container, to the byte the
// same each time, and prints its id (worker §13). scripts/worker-image runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"drawbridge/scripts/internal/engine"
	"drawbridge/scripts/internal/image"
	"drawbridge/scripts/internal/rig"
)

// options are the flags.
type options struct {
	fake, load       bool
	out, codex, host string
}

func main() {
	var o options
	flag.BoolVar(&o.fake, "fake", false, "instead of Codex, a small program that does what its prompt says, for tests")
	flag.BoolVar(&o.load, "load", false, "load the image into the engine")
	flag.StringVar(&o.out, "o", "", "write the image to this `file`, for docker load")
	flag.StringVar(&o.codex, "codex", "", "the static codex `program` (default: that of scripts/setup)")
	flag.StringVar(&o.host, "host", "", "the engine, unix://SOCKET (default: DOCKER_HOST, else "+engine.DefaultHost+")")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: scripts/worker-image [flags]\n\nBuilds the image of the worker container and prints its id.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 || o.fake && o.codex != "" {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	id, err := run(ctx, o)
	if err != nil {
		fmt.Fprintf(os.Stderr, "worker-image: error: %v\n", err)
		os.Exit(1)
	}
	fmt.Println(id)
}

func run(ctx context.Context, o options) (id string, err error) {
	sources := image.Sources{Codex: o.codex, Version: rig.CodexVersions[0], Tag: image.Tag}
	if sources.Busybox, err = image.Find("busybox-static", "/bin/busybox", "/usr/bin/busybox"); err != nil {
		return "", err
	}
	if sources.Git, err = image.Find("git", "/usr/bin/git"); err != nil {
		return "", err
	}
	switch {
	case o.fake:
		dir, err := os.MkdirTemp("", "worker-image-")
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(dir)
		sources.Codex, sources.Version, sources.Tag = filepath.Join(dir, "codex"), "fake", image.FakeTag
		if err := image.BuildFake(ctx, sources.Codex); err != nil {
			return "", err
		}
	case o.codex != "":
		sources.Version = "unknown"
	default:
		if sources.Codex, err = rig.CodexPath(sources.Version); err != nil {
			return "", err
		}
	}
	img, err := image.New(ctx, sources)
	if err != nil {
		return "", err
	}
	if o.out != "" {
		if err := save(img, o.out); err != nil {
			return "", err
		}
	}
	if o.load {
		client, err := engine.NewClient(o.host)
		if err != nil {
			return "", err
		}
		if err := img.Load(ctx, client); err != nil {
			return "", err
		}
	}
	return img.ID, nil
}

// save writes the archive beside its place and moves it there when it is whole.
func save(img *image.Image, path string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".worker-image-")
	if err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if _, err = img.WriteTo(f); err != nil {
		return errors.Join(err, f.Close())
	}
	if err = f.Close(); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return os.Rename(f.Name(), path)
}
