package station_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/station"
	"drawbridge/stationd/internal/station/stationtest"
	"drawbridge/stationd/internal/supervise"
)

// described is a provider whose every method but Describe panics.
type described struct{ lease.Description }

func (d described) Describe() lease.Description { return d.Description }
func (described) Acquire(context.Context, lease.Request) (lease.Lease, error) {
	panic("acquire")
}
func (described) Machine(context.Context, lease.Lease) (lease.Machine, error) { panic("machine") }
func (described) Heartbeat(context.Context, lease.Lease) (time.Time, error)   { panic("heartbeat") }
func (described) Release(context.Context, lease.Lease, *lease.Proof) error    { panic("release") }
func (described) Close() error                                                { panic("close") }

// contract is one that is complete.
func contract() *lease.StationContract {
	return &lease.StationContract{Start: "a", Supervise: "b", Bridge: "c", Stop: "d", OS: "linux", Network: egress.Netns,
		Containment: []string{supervise.KindPIDNamespace}, Version: 1}
}

// Proves station 17.G1, 17.G2, 17.G3, 17.E13, 17.K6, 17.L10, 17.L12 (station
// side): what may not be started is refused with its code, before there is a row, a
// lease or any call but Describe.
func TestStart_Refused(t *testing.T) {
	t.Parallel()
	weak, open, partial, version := contract(), contract(), contract(), contract()
	weak.Containment, open.Network, partial.Bridge, version.Version = []string{"pgid"}, egress.None, "", 0
	var acquired faulty
	w := newWorld(t, func(o *stationtest.Options) {
		o.Wrap = acquired.wrap
		o.More = map[string]lease.Provider{}
		for name, d := range map[string]lease.Description{
			"none": {Kind: lease.KindDelegated},
			"able": {Kind: lease.KindDelegated, ArchiveSync: true, URLBridge: true, CodeServer: true, Desktop: true, Browser: true},
			"old":  {Kind: lease.KindDelegated, Station: version},
			"half": {Kind: lease.KindSSH, Station: partial},
			"weak": {Kind: lease.KindSSH, Station: weak},
			"open": {Kind: lease.KindSSH, Station: open},
		} {
			d.Name = name
			o.More[name] = described{d}
		}
	})
	for name, c := range map[string]struct {
		change []any
		want   fault.Code
	}{
		"no contract":        {[]any{"provider", "none"}, fault.ProviderUnsupported},
		"other capabilities": {[]any{"provider", "able"}, fault.ProviderUnsupported},
		"no version":         {[]any{"provider", "old"}, fault.ProviderUnsupported},
		"an empty field":     {[]any{"provider", "half"}, fault.ProviderUnsupported},
		"weak containment":   {[]any{"provider", "weak"}, fault.ContainmentMissing},
		"an open network":    {[]any{"provider", "open"}, fault.EgressUnenforceable},
		"unknown provider":   {[]any{"provider", "other"}, fault.ProviderUnknown},
		"unknown profile":    {[]any{"profile", "other"}, fault.ProfileUnknown},
		"a bridge":           {[]any{"profile", "station"}, fault.ProfileRefused},
		"unknown way out":    {[]any{"egressProfile", "other"}, fault.EgressProfileUnknown},
		"model access":       {[]any{"modelAccess", map[string]any{"provider": "x"}}, fault.ModelAccess},
		"a secret":           {[]any{"command", map[string]any{"argv": []string{"x", "--token=0123456789abcdef"}}}, fault.SecretInArguments},
		"a variable":         {[]any{"env", map[string]any{"set": map[string]string{"API_KEY": "x"}}}, fault.SecretEnvRefused},
		"no digest":          {[]any{"harness", map[string]any{"artifact": map[string]any{"path": "/bin/true"}}}, fault.ArtifactUnpinned},
		"no user":            {[]any{"run_as", nil}, fault.RunAsRequired},
		"root":               {[]any{"run_as", map[string]any{"uid": 0, "gid": 0}}, fault.RootRefused},
		"a header":           {[]any{"bridge", map[string]any{"headerAllow": []string{"Cookie"}}}, fault.HeaderNotAllowable},
		"a limit":            {[]any{"bridge", map[string]any{"limits": map[string]any{"body": 1 << 38}}}, fault.BridgeInvalid},
		"inject":             {[]any{"daemonAuth", map[string]any{"mode": "file", "inject": "cookie"}}, fault.BridgeInvalid},
		"a field":            {[]any{"restart", true}, fault.SpecInvalid},
	} {
		if _, err := w.Manager.Start(t.Context(), w.ann, station.StartRequest{Spec: w.spec().with(c.change...).json()}); !fault.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	all, err := w.Store.Stations(t.Context(), "")
	if err != nil || len(all) != 0 || len(acquired.called()) != 0 {
		t.Errorf("%d stations, %v, %v", len(all), acquired.called(), err)
	}
	w.close()
}

// The same key and spec give the station of the first time; with another spec that is
// refused.
func TestStart_Key(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.spec()
	first, err := w.Manager.Start(t.Context(), w.ann, station.StartRequest{Spec: p.json(), Key: "k"})
	w.ok(err)
	again, err := w.Manager.Start(t.Context(), w.ann, station.StartRequest{Spec: p.json(), Key: "k"})
	if err != nil || again.Station.ID != first.Station.ID || again.Attempt != 1 || again.Bridge != first.Bridge {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err := w.Manager.Start(t.Context(), w.ann, station.StartRequest{Spec: p.with("ttl", "1h").json(), Key: "k"}); !fault.Is(err, fault.IdempotencyConflict) {
		t.Error(err)
	}
	w.stop(first)
	if again, err := w.Manager.Start(t.Context(), w.ann, station.StartRequest{Spec: p.json(), Key: "k"}); err != nil || again.Attempt != 1 {
		t.Errorf("%+v, %v", again, err)
	}
	w.clean(first)
}

// Proves station 17.L6 (station side), 17.V2 (failure): an artifact that is not the
// pinned one ends the attempt before anything of it runs, and leaves a document.
func TestStart_Fails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change []any
		want   string
	}{
		"artifact":  {[]any{"harness", map[string]any{"artifact": map[string]any{"path": "/bin/true", "sha256": zeros}}}, "integrity_failed"},
		"program":   {[]any{"harness", nil, "command", map[string]any{"argv": []string{"./nothing"}}}, "launch_failed"},
		"workspace": {[]any{"workspace", map[string]any{"source": "/nowhere"}}, "launch_failed"},
		"exits":     {[]any{"harness", nil, "command", map[string]any{"argv": []string{"/bin/false"}}}, "daemon_exited"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.start(w.spec().with(c.change...))
			row := w.ended(s)
			if row.StopReason != c.want {
				t.Errorf("%s", row.StopReason)
			}
			f := w.document(s)
			if f.Stop.Reason != c.want || f.Process.PID != row.DaemonPID {
				t.Errorf("%+v", f)
			}
			if why := f.Stop.Failure; row.DaemonPID == 0 && (why == nil || why.Code == "" || why.Message == "" || strings.Contains(why.Message, "/nowhere")) {
				t.Errorf("the reason is %+v", why)
			}
			w.clean(s)
		})
	}
}

const zeros = "0000000000000000000000000000000000000000000000000000000000000000"
