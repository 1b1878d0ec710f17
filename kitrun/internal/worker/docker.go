package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/mount"
	dockernet "github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"drawbridge/shared/fault"
	"drawbridge/shared/workernet"
)

// DefaultHost is where the engine listens unless it is said otherwise.
const DefaultHost = "unix:///var/run/docker.sock"

const unixScheme = "unix://"

// callWait bounds every call that the engine answers at once.
const callWait = 30 * time.Second

// docker is the engine behind a Docker client; the one file that knows it.
type docker struct {
	host string
	c    *client.Client
}

// NewDocker makes an engine of the Docker at host: "" is DOCKER_HOST, and without
// that DefaultHost. Only a socket of this machine will do, since the directories
// that are mounted are this machine's. Nothing is asked yet.
func NewDocker(host string) (Engine, error) {
	if host == "" {
		host = os.Getenv("DOCKER_HOST")
	}
	if host == "" {
		host = DefaultHost
	}
	if !strings.HasPrefix(host, unixScheme+"/") {
		return nil, fault.New(fault.DockerUnavailable, "connect to the container engine: its address is not unix:// and an absolute path").
			WithHint("workers need an engine on this machine; set DOCKER_HOST or --docker-host")
	}
	c, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fault.New(fault.DockerUnavailable, "connect to the container engine: %w", err)
	}
	return &docker{host, c}, nil
}

// socketDir gives the directory of an engine's socket, "" when it has none.
func socketDir(host string) string {
	path, ok := strings.CutPrefix(host, unixScheme)
	if i := strings.LastIndexByte(path, '/'); ok && i > 0 {
		return path[:i]
	}
	return ""
}

func (d *docker) Host() string { return d.host }
func (d *docker) Close() error { return d.c.Close() }

func (d *docker) Info(ctx context.Context) (EngineInfo, error) {
	ctx, done := context.WithTimeout(ctx, callWait)
	defer done()
	i, err := d.c.Info(ctx)
	if err != nil {
		return EngineInfo{}, err
	}
	return EngineInfo{OSType: i.OSType, OperatingSystem: i.OperatingSystem, SecurityOptions: i.SecurityOptions,
		Version: i.ServerVersion, APIVersion: d.c.ClientVersion(), Runtime: i.DefaultRuntime, CgroupVersion: i.CgroupVersion, CPUs: i.NCPU,
		MemoryLimit: i.MemoryLimit, SwapLimit: i.SwapLimit, PidsLimit: i.PidsLimit, CPUQuota: i.CPUCfsQuota}, nil
}

func (d *docker) Image(ctx context.Context, ref string) (string, error) {
	ctx, done := context.WithTimeout(ctx, callWait)
	defer done()
	i, err := d.c.ImageInspect(ctx, ref)
	if cerrdefs.IsNotFound(err) {
		return "", errNoImage
	}
	return i.ID, err
}

func (d *docker) Create(ctx context.Context, s Spec) (string, error) {
	config := &container.Config{
		Image: s.Image, Entrypoint: s.Entrypoint, Cmd: s.Command, Env: s.Env, User: s.User, WorkingDir: s.WorkingDir, Labels: s.Labels,
		OpenStdin: s.Stdin, StdinOnce: s.Stdin, AttachStdin: s.Stdin, AttachStdout: true, AttachStderr: true,
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	host := &container.HostConfig{
		NetworkMode: container.NetworkMode(s.Network), ExtraHosts: s.ExtraHosts, DNS: s.DNS,
		ReadonlyRootfs: true, CapDrop: []string{"ALL"}, SecurityOpt: []string{noNewPrivileges},
		IpcMode: ipcPrivate, Tmpfs: s.Tmpfs, LogConfig: container.LogConfig{Type: logNone},
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		Resources:     container.Resources{Memory: s.Memory, MemorySwap: s.Memory, NanoCPUs: s.NanoCPUs, PidsLimit: &s.Pids},
	}
	for _, u := range s.Ulimits {
		host.Ulimits = append(host.Ulimits, &container.Ulimit{Name: u.Name, Soft: u.Soft, Hard: u.Hard})
	}
	for _, m := range s.Mounts {
		host.Mounts = append(host.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: m.Source, Target: m.Destination, ReadOnly: !m.ReadWrite,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
		})
	}
	r, err := d.c.ContainerCreate(ctx, config, host, nil, nil, s.Name)
	return r.ID, err
}

func (d *docker) Inspect(ctx context.Context, id string) (Observed, error) {
	ctx, done := context.WithTimeout(ctx, callWait)
	defer done()
	i, err := d.c.ContainerInspect(ctx, id)
	if cerrdefs.IsNotFound(err) {
		return Observed{}, errNoContainer
	}
	if err != nil {
		return Observed{}, err
	}
	if i.ContainerJSONBase == nil || i.HostConfig == nil || i.Config == nil || i.State == nil {
		return Observed{}, errors.New("the engine describes the container in part only")
	}
	return observed(i), nil
}

func observed(i container.InspectResponse) Observed {
	h, c := i.HostConfig, i.Config
	o := Observed{
		ID: i.ID, Image: i.Image, Name: strings.TrimPrefix(i.Name, "/"),
		Entrypoint: c.Entrypoint, Command: c.Cmd, Env: c.Env, User: c.User, WorkingDir: c.WorkingDir, Labels: c.Labels,
		Tty: c.Tty, OpenStdin: c.OpenStdin,
		Memory: h.Memory, MemorySwap: h.MemorySwap, NanoCPUs: h.NanoCPUs, Tmpfs: h.Tmpfs,
		Network: string(h.NetworkMode), ExtraHosts: h.ExtraHosts, DNS: h.DNS,
		Privileged: h.Privileged, ReadOnlyRoot: h.ReadonlyRootfs, CapAdd: h.CapAdd, CapDrop: h.CapDrop, SecurityOptions: h.SecurityOpt,
		UsernsMode: string(h.UsernsMode), PidMode: string(h.PidMode), IpcMode: string(h.IpcMode), UTSMode: string(h.UTSMode),
		Runtime: h.Runtime, MaskedPaths: h.MaskedPaths, ReadonlyPaths: h.ReadonlyPaths, Sysctls: h.Sysctls,
		Devices: len(h.Devices) + len(h.DeviceRequests) + len(h.DeviceCgroupRules),
		Binds:   h.Binds, VolumesFrom: h.VolumesFrom, Links: h.Links, GroupAdd: h.GroupAdd,
		LogDriver: h.LogConfig.Type, RestartPolicy: string(h.RestartPolicy.Name), AppArmor: i.AppArmorProfile,
		AutoRemove: h.AutoRemove, PublishAll: h.PublishAllPorts, Ports: len(h.PortBindings),
		Running: i.State.Running, OOMKilled: i.State.OOMKilled, Status: string(i.State.Status), ExitCode: int64(i.State.ExitCode),
		PID: i.State.Pid,
	}
	if h.PidsLimit != nil {
		o.Pids = *h.PidsLimit
	}
	o.OomKillDisable = h.OomKillDisable != nil && *h.OomKillDisable
	for _, u := range h.Ulimits {
		o.Ulimits = append(o.Ulimits, Ulimit{u.Name, u.Soft, u.Hard})
	}
	for _, m := range i.Mounts {
		o.Mounts = append(o.Mounts, Mount{Type: string(m.Type), Source: m.Source, Destination: m.Destination, ReadWrite: m.RW, Propagation: string(m.Propagation)})
	}
	if at, err := time.Parse(time.RFC3339Nano, i.State.StartedAt); err == nil && at.Year() > 1 {
		o.Started = true
	}
	return o
}

func (d *docker) Attach(ctx context.Context, id string) (Streams, error) {
	h, err := d.c.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, err
	}
	return attached{h}, nil
}

// attached are the streams of one container.
type attached struct{ h types.HijackedResponse }

func (a attached) Stdin() io.Writer  { return a.h.Conn }
func (a attached) CloseWrite() error { return a.h.CloseWrite() }
func (a attached) Close() error      { a.h.Close(); return nil }

func (a attached) Split(stdout, stderr io.Writer) error {
	_, err := stdcopy.StdCopy(stdout, stderr, a.h.Reader)
	return err
}

func (d *docker) Wait(ctx context.Context, id string) (<-chan Exit, error) {
	ctx, stop := context.WithCancel(ctx)
	exits, errs := d.c.ContainerWait(ctx, id, container.WaitConditionNextExit)
	select {
	case err := <-errs: // the engine refused
		stop()
		return nil, err
	default:
	}
	out := make(chan Exit, 1)
	go func() { // ends with the container or with ctx
		defer stop()
		select {
		case r := <-exits:
			e := Exit{Status: r.StatusCode}
			if r.Error != nil {
				e.Err = errors.New(r.Error.Message)
			}
			out <- e
		case err := <-errs:
			out <- Exit{Err: err}
		case <-ctx.Done():
			out <- Exit{Err: context.Cause(ctx)}
			// The client's goroutine waits for one of its channels to be read.
			select {
			case <-exits:
			case <-errs:
			}
		}
	}()
	return out, nil
}

func (d *docker) Start(ctx context.Context, id string) error {
	return d.c.ContainerStart(ctx, id, container.StartOptions{})
}

func (d *docker) Kill(ctx context.Context, id string) error {
	ctx, done := context.WithTimeout(ctx, callWait)
	defer done()
	err := d.c.ContainerKill(ctx, id, "KILL")
	if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) { // gone, or not running
		return nil
	}
	return err
}

func (d *docker) Remove(ctx context.Context, id string) error {
	err := d.c.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case cerrdefs.IsNotFound(err):
		return errNoContainer
	case cerrdefs.IsConflict(err): // another removes it just now
		return nil
	}
	return err
}

func (d *docker) List(ctx context.Context, labels ...string) ([]Found, error) {
	ctx, done := context.WithTimeout(ctx, callWait)
	defer done()
	args := filters.NewArgs()
	for _, l := range labels {
		args.Add("label", l)
	}
	list, err := d.c.ContainerList(ctx, container.ListOptions{All: true, Filters: args})
	if err != nil {
		return nil, err
	}
	var out []Found
	for _, c := range list {
		out = append(out, Found{ID: c.ID, Status: string(c.State), Labels: c.Labels, Created: time.Unix(c.Created, 0)})
	}
	return out, nil
}

func (d *docker) Network(ctx context.Context, name string) (workernet.Network, bool, error) {
	ctx, done := context.WithTimeout(ctx, callWait)
	defer done()
	// A look by name alone could find a network whose id begins like it.
	list, err := d.c.NetworkList(ctx, dockernet.ListOptions{Filters: filters.NewArgs(filters.Arg("name", name))})
	if err != nil {
		return workernet.Network{}, false, err
	}
	list = slices.DeleteFunc(list, func(n dockernet.Summary) bool { return n.Name != name })
	switch len(list) {
	case 0:
		return workernet.Network{}, false, nil
	case 1:
	default:
		return workernet.Network{}, false, fault.New(fault.NetworkUnqualified, "look at network %s: there are %d of that name", name, len(list))
	}
	n := list[0]
	out := workernet.Network{ID: n.ID, Name: n.Name, Driver: n.Driver, Internal: n.Internal, IPv6: n.EnableIPv6, Options: n.Options, Labels: n.Labels}
	for _, c := range n.IPAM.Config {
		prefix, err := netip.ParsePrefix(c.Subnet)
		if err != nil || !prefix.Addr().Is4() || out.Subnet.IsValid() {
			continue
		}
		out.Subnet = prefix
		out.Gateway, _ = netip.ParseAddr(c.Gateway) // absent or odd: Check refuses it
	}
	return out, true, nil
}

func (d *docker) CreateNetwork(ctx context.Context, def workernet.Definition) (overlap bool, err error) {
	ctx, done := context.WithTimeout(ctx, callWait)
	defer done()
	off := false
	_, err = d.c.NetworkCreate(ctx, def.Name, dockernet.CreateOptions{
		Driver: workernet.Driver, Internal: true, EnableIPv6: &off,
		Options: map[string]string{workernet.ICCOption: workernet.ICCValue},
		Labels:  map[string]string{workernet.Label: workernet.LabelValue},
		IPAM:    &dockernet.IPAM{Driver: "default", Config: []dockernet.IPAMConfig{{Subnet: def.Subnet.String(), Gateway: def.Gateway.String()}}},
	})
	switch {
	case err == nil:
		return false, nil
	case cerrdefs.IsConflict(err): // another program made it meanwhile: it is looked at next
		return false, nil
	case strings.Contains(err.Error(), "overlap"):
		return true, err
	}
	return false, fmt.Errorf("make network %s: %w", def.Name, err)
}
