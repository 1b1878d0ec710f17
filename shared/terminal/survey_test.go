package terminal_test

import (
	"context"
	"testing"

	"drawbridge/shared/terminal"
)

// A survey gives the listing and, with it, the screens of the panes that the last
// one met; it agrees with a listing and a capture of their own.
func TestSurvey(t *testing.T) {
	a, b := startServer(t), startServer(t)
	for range 3 {
		a.tmux("new-window", "-d", "printf 'one\\ntwo\\n'; exec cat")
	}
	a.waitFor("%3", "two")
	c := terminal.New(terminal.Options{Sockets: []string{a.socket, b.socket}})
	survey := func(panes, screens int) (terminal.Listing, map[string]terminal.Screen) {
		t.Helper()
		listing, got, err := c.Survey(context.Background())
		if err != nil || len(listing.Panes) != panes || len(got) != screens {
			t.Fatalf("%d panes, %d screens, %v %v, want %d and %d", len(listing.Panes), len(got), listing.Errors, err, panes, screens)
		}
		if n := len(c.Known()); n != panes {
			t.Fatalf("%d panes are known, want %d", n, panes)
		}
		return listing, got
	}
	survey(5, 0)
	listing, got := survey(5, 5)
	want, err := c.Capture(context.Background(), listing.Panes)
	if err != nil {
		t.Fatal(err)
	}
	for key, screen := range want {
		if string(got[key].Text) != string(screen.Text) || got[key].Pane != screen.Pane {
			t.Errorf("pane %s: got %+v %q, want %+v %q", screen.Pane.ID, got[key].Pane, clip(got[key].Text), screen.Pane, clip(screen.Text))
		}
	}

	a.tmux("kill-pane", "-t", "%1")
	a.tmux("new-window", "-d", "cat")
	listing, got = survey(5, 4)
	for _, p := range listing.Panes {
		if _, ok := got[p.Key()]; ok == (p.Endpoint.Socket == a.socket && p.ID == "%4") {
			t.Errorf("pane %s of %s: has a screen: %v", p.ID, p.Endpoint.Socket, ok)
		}
	}

	// The next server begins again at %0: what it shows is its own.
	b.tmux("kill-server")
	eventually(t, "the server is gone", func() bool {
		listing, _, err := c.Survey(context.Background())
		return err == nil && len(listing.Errors) == 1 && len(listing.Panes) == 4
	})
	if _, err := c.Panes(context.Background()); err != nil {
		t.Fatal(err)
	}
	survey(4, 4)
}

// What a hook of the user prints between the screens costs screens, never the
// listing.
func TestSurvey_ForeignOutput(t *testing.T) {
	s := startServer(t)
	c := s.client()
	for range 2 {
		if _, _, err := c.Survey(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	s.tmux("set-hook", "-g", "after-capture-pane", "display-message -p 'foreign #{pane_id}'")
	listing, screens, err := c.Survey(context.Background())
	if err != nil || len(listing.Panes) != 1 || len(listing.Errors) != 0 || len(screens) != 0 {
		t.Errorf("%+v, %d screens, %v, want the pane without its screen", listing, len(screens), err)
	}
}
