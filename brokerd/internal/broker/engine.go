package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/workernet"
)

// Bounds of the few questions to the container engine.
const (
	engineWait   = 5 * time.Second
	maxEngine    = 4 << 20
	engineSocket = "/var/run/docker.sock"
	engineAPI    = "/v1.41" // Engine 20.10 and later
)

// engine asks a container engine on a socket of this machine: what it is, and
// about networks. It is no Docker client; starting containers is kitrun's.
type engine struct{ client *http.Client }

// EngineHost gives the address of the engine: the flag's, that of the environment,
// or the usual socket.
func EngineHost(flag string) string {
	if flag != "" {
		return flag
	}
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host
	}
	return "unix://" + engineSocket
}

// newEngine is nil for an engine that is not on a socket of this machine.
func newEngine(host string) *engine {
	path, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return nil
	}
	dialer := net.Dialer{Timeout: engineWait}
	return &engine{&http.Client{Timeout: engineWait, Transport: &http.Transport{
		Proxy: nil, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) },
	}}}
}

// engineError is an answer of the engine that is no success.
type engineError struct {
	status  int
	message string
}

func (e *engineError) Error() string {
	return fmt.Sprintf("the engine answers %d: %s", e.status, fault.CleanLine(e.message))
}

func (e *engine) call(ctx context.Context, method, path string, body, into any) error {
	var send io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		send = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+engineAPI+path, send)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		return fault.New(fault.DockerUnavailable, "ask the container engine: it does not answer: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxEngine))
	if err != nil {
		return fault.New(fault.DockerUnavailable, "ask the container engine: %w", err)
	}
	if resp.StatusCode >= 300 {
		var said struct{ Message string }
		_ = json.Unmarshal(data, &said)
		return &engineError{resp.StatusCode, said.Message}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(data, into)
}

// info says what runs containers here.
type engineInfo struct{ OSType, OperatingSystem string }

func (e *engine) info(ctx context.Context) (i engineInfo, err error) {
	return i, e.call(ctx, http.MethodGet, "/info", nil, &i)
}

// engineNetwork is a network in the words of the engine.
type engineNetwork struct {
	ID         string `json:"Id"`
	Name       string
	Driver     string
	Internal   bool
	EnableIPv6 bool
	IPAM       struct {
		Config []struct{ Subnet, Gateway string }
	}
	Options map[string]string
	Labels  map[string]string
}

func (n engineNetwork) network() workernet.Network {
	out := workernet.Network{ID: n.ID, Name: n.Name, Driver: n.Driver, Internal: n.Internal, IPv6: n.EnableIPv6, Options: n.Options, Labels: n.Labels}
	if len(n.IPAM.Config) > 0 {
		out.Subnet, _ = netip.ParsePrefix(n.IPAM.Config[0].Subnet)
		out.Gateway, _ = netip.ParseAddr(n.IPAM.Config[0].Gateway)
	}
	return out
}

// Network finds a network by its exact name; the engine's own filter takes parts.
func (e *engine) Network(ctx context.Context, name string) (found workernet.Network, ok bool, err error) {
	filter, err := json.Marshal(map[string][]string{"name": {name}})
	if err != nil {
		return found, false, err
	}
	var all []engineNetwork
	if err := e.call(ctx, http.MethodGet, "/networks?filters="+url.QueryEscape(string(filter)), nil, &all); err != nil {
		return found, false, err
	}
	for _, n := range all {
		if n.Name != name {
			continue
		}
		if ok {
			return found, false, fault.New(fault.NetworkUnqualified, "find network %s: there are two of that name", name)
		}
		found, ok = n.network(), true
	}
	return found, ok, nil
}

// CreateNetwork makes the network of the workers.
func (e *engine) CreateNetwork(ctx context.Context, d workernet.Definition) (overlap bool, err error) {
	type pool struct{ Subnet, Gateway string }
	err = e.call(ctx, http.MethodPost, "/networks/create", map[string]any{
		"Name": d.Name, "CheckDuplicate": true, "Driver": workernet.Driver, "Internal": true, "EnableIPv6": false,
		"IPAM":    map[string]any{"Driver": "default", "Config": []pool{{d.Subnet.String(), d.Gateway.String()}}},
		"Options": map[string]string{workernet.ICCOption: workernet.ICCValue},
		"Labels":  map[string]string{workernet.Label: workernet.LabelValue},
	}, nil)
	var said *engineError
	if errors.As(err, &said) && strings.Contains(strings.ToLower(said.message), "overlap") {
		return true, err
	}
	return false, err
}
