package lender_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
)

// behave makes a re-executed test binary a program of its own: the value says which.
const behave = "DRAWBRIDGE_TEST_BEHAVE"

// fakeBrokerd is a brokerd without a network: it moves the rows as the real one
// does, and appends what it does to the file marks in the Store's parent.
func fakeBrokerd(how, storeDir string) int {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	mark := func(format string, args ...any) {
		f, err := os.OpenFile(filepath.Join(filepath.Dir(storeDir), "marks"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			os.Exit(9)
		}
		defer f.Close()
		fmt.Fprintf(f, format+"\n", args...)
	}
	mark("start %d", os.Getpid())
	if how == "broken" {
		fmt.Fprintln(os.Stderr, "brokerd: error: the address is taken, password=CANARY")
		fmt.Fprintln(os.Stderr, "brokerd: hint: take another")
		return 69
	}
	line, err := service.OpenLifeline()
	if err != nil || line == nil {
		return 8
	}
	orphaned, stop := context.WithCancel(context.Background())
	go func() { _ = line.Run(context.Background()); stop() }()
	ctx := context.Background()
	s, err := store.Open(ctx, store.Options{Dir: storeDir, Program: "brokerd"})
	if err != nil {
		return 7
	}
	defer s.Close()
	l, err := s.Acquire(ctx, store.BrokerdLease(), store.LeaseTTL)
	if err != nil {
		mark("held")
		return fault.ExitCode(err)
	}
	defer s.Release(ctx, l)
	made, err := s.OpenEndpoints(ctx, l, []store.NewEndpoint{{
		BindAddress: "127.0.0.1", BindReason: "test", Port: 1, BaseURL: "http://host.docker.internal:1", TransportMode: "mocked-test-only",
	}})
	if err != nil {
		return 6
	}
	mark("serve %d", os.Getpid())
	for {
		grants, err := s.OpenGrants(ctx)
		if err != nil {
			return 5
		}
		live := 0
		for _, g := range grants {
			gone, _ := s.CreatorGone(ctx, g)
			switch {
			case how == "mute":
			case g.State == store.GrantRequested && g.CloseRequestedAt == 0 && !gone && how == "refuse":
				_, err = s.RefuseGrant(ctx, l, g.ID, store.Refusal{Code: fault.CredentialExpired, Why: "its token is over", Hint: "log in"})
			case g.State == store.GrantRequested && g.CloseRequestedAt == 0 && !gone:
				if _, _, err = s.PrepareBudget(ctx, l, g.ID, "https://api.openai.com/v1"); err == nil {
					_, err = s.ActivateGrant(ctx, l, g.ID, store.Activation{EndpointID: made[0].ID, CredentialKind: "api_key"})
				}
				mark("active %s", g.ID)
			case g.State == store.GrantRequested:
				_, err = s.WithdrawGrant(ctx, l, g.ID, "creator_gone")
			case (g.CloseRequestedAt != 0 || gone) && how != "stuck":
				if g.State == store.GrantActive {
					_, err = s.BeginClose(ctx, l, g.ID, "creator_gone")
				}
				if err == nil {
					_, err = s.FinishClose(ctx, l, g.ID)
				}
				mark("closed %s", g.ID)
			}
			if err != nil {
				mark("error %v", err)
				return 4
			}
			if !gone {
				live++
			}
		}
		if orphaned.Err() != nil && live == 0 {
			mark("end %d", os.Getpid())
			return 0
		}
		time.Sleep(2 * time.Millisecond)
	}
}
