package control_test

import (
	"context"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/control"
)

// Proves station 17.C7: the control socket is closed to every other uid, by its mode
// and, where that lets one pass, by the principal that it is not.
func TestPeer_OtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	w := newWorld(t)
	st, err := os.Lstat(w.socket())
	if err != nil || st.Mode() != os.ModeSocket|0o600 {
		t.Errorf("got %v, %v", st.Mode(), err)
	}
	stranger := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}
	if err := os.Chmod(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := w.visit(stranger); got != string(fault.StationdUnavailable) {
		t.Errorf("by the mode: %q", got)
	}
	if err := os.Chmod(w.socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	if got := w.visit(stranger); got != string(fault.PeerRefused) {
		t.Errorf("by the principal: %q", got)
	}
	uid := int64(65533)
	p, err := w.AddPrincipal(t.Context(), control.PrincipalRequest{Name: "stranger", UID: &uid})
	if err != nil || p.Secret != "" || *p.UID != uid {
		t.Fatalf("got %+v, %v", p, err)
	}
	if got := w.visit(stranger); got != "" {
		t.Errorf("with a row: %q", got)
	}
	if _, err := w.RevokePrincipal(t.Context(), p.PrincipalID); err != nil {
		t.Fatal(err)
	}
	if got := w.visit(stranger); got != string(fault.PeerRefused) {
		t.Errorf("revoked: %q", got)
	}
}

// Proves station 17.L14 (control socket): a process of the same uid in another network
// namespace that reaches the socket is hung up on.
func TestPeer_OtherNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	w := newWorld(t)
	if got := w.visit(nil); got != "" {
		t.Errorf("a neighbour: %q", got)
	}
	if got := w.visit(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}); got != string(fault.StationdUnavailable) {
		t.Errorf("another network: %q", got)
	}
}

// The socket: what is dead or stands still is replaced, what answers is not, and what
// is no socket is left alone.
func TestListen(t *testing.T) {
	w := newWorld(t)
	server := func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		return control.New(control.Options{RuntimeDir: w.dir, Store: w.Store, Bell: store.NewDoorbell(w.Store, nil), Manager: w.manager}).Run(ctx, cancel)
	}
	wantCode(t, server(), fault.ListenerUnavailable)
	stopped, stop := context.WithCancel(t.Context())
	stop()
	other := control.New(control.Options{RuntimeDir: w.dir, Store: w.Store, Bell: store.NewDoorbell(w.Store, nil), Manager: w.manager})
	if err := other.Run(stopped, func() { t.Error("it serves") }); err != nil {
		t.Errorf("stopped while it asks who serves: %v", err)
	}
	if !w.Client.Answers(t.Context()) {
		t.Error("who stops takes the socket of another away")
	}
	w.stop()
	hung, err := net.Listen("unix", w.socket()) // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	if err := server(); err != nil {
		t.Errorf("beside one that stands still: %v", err)
	}
	_ = os.Remove(w.socket())
	if err := os.WriteFile(w.socket(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantCode(t, server(), fault.ListenerUnavailable)
	if st, err := os.Lstat(w.socket()); err != nil || !st.Mode().IsRegular() {
		t.Errorf("got %v, %v", st, err)
	}
}
