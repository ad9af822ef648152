package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"time"

	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/task"
)

// inferServer is a server of the Open Inference Protocol with one model.
type inferServer struct {
	name  string
	model string // path of the model there
	form  inferForm
	must  bool                                             // whether a failure is a failure of the run
	start func(ctx context.Context) (*inferProcess, error) // nil if it shares the process of the row above
	why   string                                           // reason that it is not measured
	addr  string
	run   *inferProcess

	full, paced inferTurns
}

type inferTurns struct {
	turns    turns
	p50, p99 []float64 // milliseconds
}

// nameInferOurs begins the names of our rows in the table.
const nameInferOurs = "Tidemill, "

func (w *scoreBench) inferServers(ctx context.Context) (all []*inferServer, err error) {
	for _, build := range []struct{ name, program string }{{"Tidemill", w.self}, {"Tidemill, the other build", w.scorePlan.beside}} {
		if build.program == "" {
			continue
		}
		s, rpc := &inferServer{name: build.name + ", JSON", model: fleet.Model(0), addr: freeAddr(), must: build.program == w.self}, freeAddr()
		arg, err := json.Marshal(gatewayTask{Kafka: w.server.addrs[0], Redis: w.server.addrs[1], Store: w.storeURL(), Listen: s.addr, ListenGRPC: rpc, Stream: inStream, Dedupe: "off",
			Profile: w.profile, What: w.Name})
		if err != nil {
			return nil, err
		}
		s.start = func(ctx context.Context) (*inferProcess, error) {
			own, err := startServer(ctx, append(w.pinnedCores(), build.program, roleGateway), string(arg))
			return &inferProcess{own: own}, err
		}
		all = append(all, s, &inferServer{name: build.name + ", a version, JSON", model: s.model + "/versions/1", addr: s.addr, must: s.must},
			&inferServer{name: build.name + ", 17 digits, JSON", model: s.model, addr: s.addr, form: formLong, must: s.must},
			&inferServer{name: build.name + ", binary tensors", model: s.model, addr: s.addr, form: formBinary, must: s.must},
			&inferServer{name: build.name + ", gRPC", model: s.model, addr: rpc, form: formGRPC, must: s.must})
	}
	for _, name := range w.Beside {
		others, err := w.otherServer(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, others...)
	}
	return all, nil
}

// otherServer returns the rows of a peer. KServe's server has no gRPC here, because it would start
// further processes.
func (w *scoreBench) otherServer(ctx context.Context, name string) ([]*inferServer, error) {
	s, rpc := &inferServer{name: map[string]string{"mlserver": "MLServer, JSON", "kserve": "KServe, JSON"}[name], model: fleet.Key(0), addr: freeAddr()}, freeAddr()
	python, why := findInstalled(ctx, name, w.fetch)
	s.why = why
	_, port, err := net.SplitHostPort(s.addr)
	_, other, failed := net.SplitHostPort(rpc)
	command := []string{python, filepath.Join(sourceFolder("peers"), "python", name+"_peer.py"), s.model, filepath.Join(w.modelFolder(), fleet.Key(0)+".onnx"), port, other}
	s.start = func(context.Context) (*inferProcess, error) {
		run, err := startPinned(command, runtime.NumCPU()-w.Cores, runtime.NumCPU()-1)
		return &inferProcess{other: run}, err
	}
	all := []*inferServer{s}
	if name == "mlserver" {
		all = append(all, &inferServer{name: "MLServer, gRPC", model: s.model, addr: rpc, form: formGRPC, why: why})
	}
	return all, errors.Join(err, failed)
}

// pinnedCores returns the beginning of a command that runs on the cores of the measured program.
func (w *scoreBench) pinnedCores() []string {
	return []string{"taskset", "-c", coreList(runtime.NumCPU()-w.Cores, runtime.NumCPU()-1)}
}

// inferProcess is a server's process. A build of ours measures itself, because it knows its
// allocations and can write profiles.
type inferProcess struct {
	own    *childServer
	other  *pinnedProcess
	before task.Process
}

func (p *inferProcess) pid() int {
	if p.own != nil {
		return p.own.cmd.Process.Pid
	}
	return p.other.pid()
}

func (p *inferProcess) startMeasuring() (err error) {
	if p.own != nil {
		return p.own.startMeasuring()
	}
	p.before, err = task.ReadProcess(p.pid())
	return err
}

func (p *inferProcess) stopMeasuring() (r task.Result, err error) {
	now, err := task.ReadProcess(p.pid())
	if p.own == nil {
		r.CPU = now.CPU - p.before.CPU
	} else if err == nil {
		r, err = p.own.stopMeasuring()
	}
	r.Resident = now.Resident
	return r, err
}

func (p *inferProcess) stop() error {
	if p.own != nil {
		return p.own.stop()
	}
	p.other.stop()
	return nil
}

// ended is nil, and so never ready, for a build of ours, which is ready when it has started.
func (p *inferProcess) ended() chan struct{} {
	if p.own != nil {
		return nil
	}
	return p.other.ended
}

// freeAddr returns an address of this machine that is free now.
func freeAddr() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "127.0.0.1:0" // the server says that it cannot be used
	}
	defer l.Close()
	return l.Addr().String()
}

// readyWithin is the time in which a server must answer. Python servers import much.
const readyWithin = 90 * time.Second

// open starts the server and waits until it answers rightly.
func (s *inferServer) open(ctx context.Context, w *scoreBench) (err error) {
	if s.start != nil {
		if s.run, err = s.start(ctx); err != nil {
			s.run = nil
			return err
		}
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(readyWithin); ; {
		err := s.checkAnswers(ctx, w)
		refused := (*refusedInfer)(nil)
		if err == nil || errors.As(err, &refused) && refused.status == http.StatusBadRequest || time.Now().After(until) {
			return err
		}
		select {
		case <-tick.C:
		case <-s.run.ended():
			return fmt.Errorf("it ended: %s", s.run.other.said())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
