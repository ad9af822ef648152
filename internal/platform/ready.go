package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/network"
)

// Ready checks everything that the process depends on, all in parallel.
func (p *Platform) Ready(ctx context.Context) api.Readiness {
	probes := []func(context.Context) api.Check{p.checkKafka, p.checkRedis, p.checkStreams, p.checkConfig}
	if p.servers != nil {
		probes = append(probes, p.checkDisk)
	}
	probes = append(probes, p.readinessChecks()...)
	r := api.Readiness{Status: api.OK, Checks: make([]api.Check, len(probes))}
	var all sync.WaitGroup
	for i, probe := range probes {
		all.Go(func() { r.Checks[i] = probe(ctx) })
	}
	all.Wait()
	for _, c := range r.Checks {
		if c.Status == api.Failed || c.Status == api.Degraded && r.Status == api.OK {
			r.Status = c.Status
		}
	}
	return r
}

func (p *Platform) checkKafka(ctx context.Context) api.Check {
	return outcome("kafka", p.addresses.Kafka, p.broker.Ping(ctx))
}

func (p *Platform) checkRedis(ctx context.Context) api.Check {
	if p.redis == nil {
		return api.Check{Name: "redis", Status: api.OK, Detail: "none is configured: repeats are not recognised"}
	}
	c := outcome("redis", p.addresses.Redis, p.redis.Ping(ctx).Err())
	if c.Status == api.Failed { // this cache only recognises repeats, so no event is refused without it
		c.Status = api.Degraded
	}
	p.mu.Lock()
	memory := p.repeats
	p.mu.Unlock()
	if c.Status == api.OK && memory.Away() { // the memory of repeats tries again within seconds
		c.Status, c.Detail = api.Degraded, p.addresses.Redis+": it answers, and the repeats of other gateways are not recognised yet"
	}
	return c
}

func outcome(name, address string, err error) api.Check {
	if err != nil {
		return api.Check{Name: name, Status: api.Failed, Detail: fmt.Sprintf("%s: %v", address, err)}
	}
	return api.Check{Name: name, Status: api.OK, Detail: address}
}

// checkStreams compares the streams with the config without changing them.
func (p *Platform) checkStreams(ctx context.Context) api.Check {
	wanted := p.wantedStreams(p.Config())
	report, err := p.broker.EnsureStreams(ctx, wanted, broker.EnsureOptions{DryRun: true, Reorder: p.reorder})
	if err != nil {
		return api.Check{Name: "streams", Status: api.Failed, Detail: err.Error()}
	}
	var missing, differ []string
	for _, c := range report.Changes {
		if c.What == "created" {
			missing = append(missing, c.Stream)
			continue
		}
		differ = append(differ, fmt.Sprintf("%s has %s %s, not %s", c.Stream, c.What, c.From, c.To))
	}
	for _, d := range report.Drift {
		differ = append(differ, fmt.Sprintf("%s has %s %s, not %s: %s", d.Stream, d.What, d.Have, d.Want, d.Next))
	}
	switch {
	case len(missing) > 0:
		return api.Check{Name: "streams", Status: api.Failed, Detail: "missing: " + strings.Join(missing, ", ") + "; a restart creates them"}
	case len(differ) > 0:
		return api.Check{Name: "streams", Status: api.Degraded, Detail: strings.Join(differ, "; ")}
	}
	return api.Check{Name: "streams", Status: api.OK, Detail: fmt.Sprintf("%d as the config wants them", len(wanted))}
}

// The embedded Kafka answers even if its disk is full, but then refuses events. So the disk is
// checked, with an early warning.
const (
	diskFull   = 4 << 20 // room for a batch, its index and the writes at the stop
	diskFilled = 256 << 20
)

func (p *Platform) checkDisk(context.Context) api.Check {
	left, err := p.servers.DiskLeft()
	if err != nil {
		return api.Check{Name: "disk", Status: api.Failed, Detail: err.Error()}
	}
	return room(left)
}

func room(left int64) api.Check {
	if left == math.MaxInt64 {
		return api.Check{Name: "disk", Status: api.OK, Detail: "no limit is known"}
	}
	mib := fmt.Sprintf("%d MiB left where the data folder is", left>>20)
	switch {
	case left < diskFull:
		return api.Check{Name: "disk", Status: api.Failed, Detail: mib + ": publishing fails; free some, or stop and move the folder to where there is more"}
	case left < diskFilled:
		return api.Check{Name: "disk", Status: api.Degraded, Detail: mib + ": publishing fails when none is left"}
	}
	return api.Check{Name: "disk", Status: api.OK, Detail: mib}
}

// diskAsked is the time for which an answer about the disk is used again.
const diskAsked = 100 * time.Millisecond

// fullness returns a function that says in words that the disk of the embedded Kafka is full; it
// returns an empty text if the disk has room. It is nil without an embedded Kafka.
func (p *Platform) fullness() func() string {
	if p.servers == nil {
		return nil
	}
	var mu sync.Mutex
	var until time.Time
	var words string
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.After(until) {
			words, until = fullText(p.servers.Dir(), p.servers.DiskLeft), now.Add(diskAsked)
		}
		return words
	}
}

func fullText(dir string, left func() (int64, error)) string {
	n, err := left()
	if err != nil || n >= diskFull {
		return "" // an error is a matter of readiness
	}
	return fmt.Sprintf("disk full: %d KiB are left in %s, and nothing is stored until there are %d MiB; free some, or stop and move the folder", n>>10, dir, diskFull>>20)
}

func (p *Platform) checkConfig(context.Context) api.Check {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(p.refused, errNotApplied) {
		return api.Check{Name: "config", Status: api.Degraded, Detail: p.refused.Error()}
	}
	if p.refused != nil {
		return api.Check{Name: "config", Status: api.Degraded, Detail: fmt.Sprintf("the file does not apply and the config %s before it stays in force: %v", p.config.Hash(), p.refused)}
	}
	return api.Check{Name: "config", Status: api.OK, Detail: p.config.Hash()}
}

const probeWithin = 5 * time.Second

// Probes serves /healthz, /readyz and /metrics for Kubernetes and Prometheus in a process without a
// gateway. The probes need no token, so they return only states and numbers. The result is the
// address. The stop order closes the server.
func (p *Platform) Probes(ctx context.Context, listen string) (string, error) {
	if p.telemetry == nil {
		return "", errors.New("serve the probes: the platform was opened without telemetry")
	}
	l, err := p.network.ListenTCP(ctx, listen)
	if err != nil {
		return "", fmt.Errorf("listen for probes on %q: %w", listen, err)
	}
	mux := http.NewServeMux()
	p.addProbes(mux)
	server := network.NewServer(network.ServerOptions{Handler: mux, ReadHeader: probeWithin, Errors: slog.LevelDebug, Logger: p.log})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	// The probes close after the stage Doors, because they must answer while the process drains.
	p.AtStop(clients, "the probes", func(context.Context) error {
		err := server.Close()
		if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	})
	return l.Addr().String(), nil
}

func (p *Platform) addProbes(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", p.probeReady)
	mux.Handle("GET /metrics", p.telemetry.Metrics())
}

func (p *Platform) probeReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), probeWithin)
	defer cancel()
	state := p.Ready(ctx)
	for i := range state.Checks {
		state.Checks[i].Detail = "" // the detail names servers and files, and any client may send this request
	}
	w.Header().Set("Content-Type", "application/json")
	if state.Status == api.Failed {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(state) // an error means that the client has disconnected
}

// Running holds the addresses of a laptop's Tidemill. It is stored in the data folder, so that
// commands find it without flags.
type Running struct {
	PID    int    `json:"pid"`
	Name   string `json:"name"`
	Kafka  string `json:"kafka"`
	Redis  string `json:"redis"`
	HTTP   string `json:"http"`
	URL    string `json:"url"`    // URL of the gateway for clients on this machine
	Config string `json:"config"` // absolute path; the file need not exist

	Embedded bool `json:"embedded,omitempty"` // whether Kafka and Redis are those of this process, with their passwords in the data folder
}

// AddressFile returns the path of the addresses in a data folder.
func AddressFile(dir string) string { return filepath.Join(dir, "addresses.json") }

// Write writes the addresses into a data folder, atomically.
func (r Running) Write(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	file := AddressFile(dir)
	if err := os.WriteFile(file+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the addresses: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("write the addresses: %w", err)
	}
	return nil
}

// Forget removes the addresses.
func Forget(dir string) error {
	err := os.Remove(AddressFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Find reads the addresses from a data folder. It returns false if no process uses the folder or
// the last one stopped normally.
func Find(dir string) (Running, bool, error) {
	var r Running
	text, err := os.ReadFile(AddressFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, false, fmt.Errorf("read the addresses: %s: %w; start tidemill up again, or give the gateway by --url", AddressFile(dir), err)
	}
	return r, true, nil
}
