package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"drawbridge/shared/checkup"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/stationd/internal/control"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/supervise"
)

// mechanisms are the checks without which no station can run here.
var mechanisms = []string{"shim", "containment", "network", "view"}

func doctorCommand(stdout io.Writer) *service.Command {
	var cfg serveConfig
	asJSON := false
	return &service.Command{
		Name: "doctor", Short: "Try here what stationd serve relies on",
		Long: "doctor starts throwaway processes in namespaces of their own and ends them, looks at the Store and\n" +
			"the directories, and reads the administrator's files. Of a provider it looks at the key or agent of\n" +
			"this side; it connects to no other machine. Give it the settings of serve. Its status is 69 when a\n" +
			"mechanism is missing, and 1 when something else is wrong.",
		Flags: func(fs *flag.FlagSet) {
			cfg.register(fs)
			fs.BoolVar(&asJSON, "json", false, "print JSON")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, _ []string) error {
			if err := cfg.Common.Check(); err != nil {
				return err
			}
			return examine(ctx, cfg, asJSON, stdout)
		},
	}
}

// examine makes all checks, and says which were not fine by its error.
func examine(ctx context.Context, cfg serveConfig, asJSON bool, stdout io.Writer) error {
	checks := append(machineChecks(ctx), placeChecks(ctx, cfg)...)
	if asJSON {
		data, err := checkup.Object(checkup.Facts("ok", checkup.Worst(checks) != checkup.Failed, "checks", checks))
		if err != nil {
			return err
		}
		if _, err := stdout.Write(append(data, '\n')); err != nil {
			return err
		}
	} else if err := checkup.Table(stdout, checks); err != nil {
		return err
	}
	// The report has said what there is to say.
	failed := slices.DeleteFunc(checks, func(c checkup.Check) bool { return c.Status() != checkup.Failed })
	switch {
	case slices.ContainsFunc(failed, func(c checkup.Check) bool { return slices.Contains(mechanisms, c.Name) }):
		return service.Status(fault.ExitCode(fault.New(fault.DependencyMissing, "doctor")))
	case len(failed) > 0:
		return service.Status(fault.ExitCode(fault.New(fault.DoctorFindings, "doctor")))
	}
	return nil
}

// machineChecks try what holds a daemon.
func machineChecks(ctx context.Context) []checkup.Check {
	shim, err := supervise.Shim()
	pinned := "any"
	if supervise.ShimSHA256 != "" {
		pinned = supervise.ShimSHA256
	}
	checks := []checkup.Check{{Name: "shim", Facts: checkup.Facts("path", shim, "sha256", pinned), Err: err}, userNamespaces(ctx)}
	if err != nil {
		return checks
	}
	dir, err := os.MkdirTemp("", "drawbridge-doctor-")
	if err != nil {
		return append(checks, checkup.Check{Name: "containment", Err: err})
	}
	defer os.RemoveAll(dir)
	r := supervise.Probe(ctx, shim, dir)
	_, kind, err := r.Select(shim)
	checks = append(checks, checkup.Check{Name: "containment", Facts: checkup.Facts("selected", kind), Err: err})
	for _, k := range r.Kinds {
		checks = append(checks, checkup.Check{Name: "by_" + k.Name, Facts: checkup.Facts("result", kindText(k))})
	}
	enforced, err := string(egress.Netns), error(nil)
	if !r.Network {
		enforced, err = string(egress.None), fault.New(fault.EgressUnenforceable, "no closed network namespace could be made")
	}
	checks = append(checks, checkup.Check{Name: "network", Facts: checkup.Facts("egress", enforced), Err: err})
	err = nil
	if !r.View {
		err = fault.New(fault.ContainmentMissing, "no mount view of its own could be made for a daemon")
	}
	return append(checks, checkup.Check{Name: "view", Err: err})
}

func kindText(k supervise.Kind) string {
	switch {
	case k.Selected:
		return fmt.Sprintf("used, ended all in %v", k.Took)
	case k.Detail != "":
		return k.Detail
	case k.Available:
		return "there, not used"
	}
	return "not there"
}

// userNamespaces tries one: who is not root needs it.
func userNamespaces(ctx context.Context) checkup.Check {
	c := checkup.Check{Name: "user_namespaces"}
	exe, err := os.Executable()
	if err == nil {
		cmd := exec.CommandContext(ctx, exe, "version")
		cmd.Env = []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
		err = cmd.Run()
	}
	c.Facts = checkup.Facts("available", err == nil, "needed", os.Geteuid() != 0)
	switch {
	case err == nil:
	case os.Geteuid() == 0:
		c.Err = checkup.Warn(fault.New(fault.ContainmentMissing, "none can be made: %w", err).WithHint("root does not need them"))
	default:
		c.Err = fault.New(fault.ContainmentMissing, "none can be made: %w", err).
			WithHint("run stationd as root, or allow unprivileged user namespaces")
	}
	return c
}

// placeChecks look at files and directories.
func placeChecks(ctx context.Context, cfg serveConfig) []checkup.Check {
	facts, err := checkup.Store("stationd", cfg.StoreDir)(ctx)
	checks := []checkup.Check{{Name: "store", Facts: facts, Err: err}}
	for _, dir := range []struct{ name, path string }{{"runtime_dir", cfg.RuntimeDir}, {"state_dir", cfg.stateDir}} {
		checks = append(checks, directory(dir.name, dir.path))
	}
	answers := control.NewClient(filepath.Join(cfg.RuntimeDir, control.Socket)).Answers(ctx)
	checks = append(checks, checkup.Check{Name: "stationd", Facts: checkup.Facts("answers", answers)})
	var remotes []lease.Remote
	for _, file := range []struct {
		name, path string
		read       func(path string) error
	}{
		{"profiles", cfg.profilesFile, func(path string) error { _, err := launch.LoadProfiles(path); return err }},
		{"egress_profiles", cfg.egressFile, func(path string) error { _, err := egress.Load(path); return err }},
		{"providers", cfg.providersFile, func(path string) (err error) { remotes, err = lease.LoadRemotes(path); return err }},
	} {
		c := checkup.Check{Name: file.name, Facts: checkup.Facts("file", orDash(file.path))}
		if file.path != "" {
			c.Err = file.read(file.path)
		}
		checks = append(checks, c)
	}
	for _, r := range remotes {
		checks = append(checks, checkup.Check{
			Name: "provider_" + r.Name, Facts: checkup.Facts("key_file", orDash(r.KeyFile), "agent", orDash(r.Agent), "dialled", false), Err: r.Usable(),
		})
	}
	return checks
}

// directory looks whether serve could use a private directory, and makes none.
func directory(name, path string) checkup.Check {
	c := checkup.Check{Name: name, Facts: checkup.Facts("path", path)}
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	switch {
	case errors.Is(err, unix.ENOENT) && checkup.Makeable(path):
	case err != nil:
		c.Err = fault.New(fault.RuntimeDirUnsafe, "it cannot be used: %w", err)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR, int(st.Uid) != os.Geteuid(), st.Mode&0o022 != 0:
		c.Err = fault.New(fault.RuntimeDirUnsafe, "it is no directory of this user that nobody else can write")
	}
	return c
}
