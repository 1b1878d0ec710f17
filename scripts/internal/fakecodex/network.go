package fakecodex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// patience is how long a connection may take when the word does not say.
const patience = 3 * time.Second

// cut splits "TARGET [WAIT]".
func cut(rest string) (target string, wait time.Duration, err error) {
	target, given, _ := strings.Cut(rest, " ")
	if given = strings.TrimSpace(given); given == "" {
		return target, patience, nil
	}
	wait, err = time.ParseDuration(given)
	return target, wait, err
}

func connect(_ *Codex, rest string) (string, error) {
	addr, wait, err := cut(rest)
	if err != nil {
		return "", err
	}
	conn, err := (&net.Dialer{Timeout: wait}).Dial("tcp", addr)
	if err == nil {
		return "open", conn.Close()
	}
	return outcome(err), nil
}

// outcome names how a connection failed.
func outcome(err error) string {
	var slow net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "unreachable"
	case errors.As(err, &slow) && slow.Timeout():
		return "timeout"
	}
	return err.Error()
}

func listen(c *Codex, addr string) (string, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	c.listeners = append(c.listeners, l)
	go func() { // ends with the listener, at the end of Run
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return l.Addr().String(), nil
}

func udp(_ *Codex, rest string) (string, error) {
	addr, text, _ := strings.Cut(rest, " ")
	conn, err := net.Dial("udp", addr)
	if err != nil {
		return outcome(err), nil
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		return outcome(err), nil
	}
	return "sent", nil
}

func lookup(_ *Codex, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found, err := net.DefaultResolver.LookupHost(ctx, name)
	if err != nil || len(found) == 0 {
		return "failed", nil
	}
	slices.Sort(found)
	return strings.Join(found, " "), nil
}

func get(_ *Codex, rest string) (string, error) {
	url, wait, err := cut(rest)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	return do(req, wait)
}

// respond asks the model for an answer as Codex does: POST to base_url of the
// configuration, capability as bearer.
func respond(_ *Codex, rest string) (string, error) {
	config, err := os.ReadFile(filepath.Join(os.Getenv(home), "config.toml"))
	if err != nil {
		return "", err
	}
	base, model := setting(string(config), "base_url"), setting(string(config), "model")
	body := fmt.Sprintf(`{"model":%s,"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":%s}]}],"stream":true,"store":false}`,
		quote(model), quote(rest))
	req, err := http.NewRequest(http.MethodPost, base+"/responses", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Authorization", "Bearer "+os.Getenv(capability))
	return do(req, time.Minute)
}

// setting is the value of a simple string in the configuration.
func setting(config, name string) string {
	for _, row := range strings.Split(config, "\n") {
		key, value, ok := strings.Cut(row, "=")
		if ok && strings.TrimSpace(key) == name {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}

func do(req *http.Request, wait time.Duration) (string, error) {
	client := &http.Client{Timeout: wait, Transport: &http.Transport{Proxy: nil}}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return outcome(err), nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReport))
	if err != nil {
		return fmt.Sprintf("%d, then: %s", resp.StatusCode, outcome(err)), nil
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body), nil
}

func interfaces(*Codex, string) (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	var rows []string
	for _, one := range all {
		addrs, err := one.Addrs()
		if err != nil {
			return "", err
		}
		row := one.Name
		for _, addr := range addrs {
			row += " " + addr.String()
		}
		rows = append(rows, row)
	}
	return strings.Join(rows, "\n"), nil
}
