package realservers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
)

// Prometheus is a running server of Prometheus.
type Prometheus struct {
	dir, addr string
	ports     *ports
	proc      *process
}

// StartPrometheus starts a prometheus with a config and a file of rules, which the config names
// rules.yaml, and waits until it answers.
func StartPrometheus(ctx context.Context, config, rules string) (*Prometheus, error) {
	ports, err := takePorts(loopback, 1)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tidemill-prometheus-")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a folder for prometheus: %w", err), ports.release())
	}
	p := &Prometheus{dir: dir, addr: at(loopback, ports.all[0]), ports: ports}
	file := filepath.Join(dir, "prometheus.yaml")
	p.proc = &process{dir: dir, log: filepath.Join(dir, "log"), args: []string{"prometheus",
		"--config.file", file, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", at(loopback, ports.all[0])}}
	for name, text := range map[string]string{file: config, filepath.Join(dir, "rules.yaml"): rules} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("write a file for prometheus: %w", err), p.Close())
		}
	}
	err = p.proc.start()
	if err == nil {
		err = p.proc.waitReady(ctx, p.ready)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Addr returns the address of the server.
func (p *Prometheus) Addr() string { return p.addr }

// Close ends the server and removes its files.
func (p *Prometheus) Close() error {
	return errors.Join(p.proc.stop(), p.ports.release(), os.RemoveAll(p.dir))
}

func (p *Prometheus) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/-/ready", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("prometheus answers %s", res.Status)
	}
	return nil
}
