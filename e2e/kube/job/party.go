package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// party is the group of workers and servers in the variables. TF_CONFIG and PyTorch's variables
// must agree.
type party struct {
	server           bool
	index            int
	workers, servers []string // host:port of each process
}

func partyOf(variable func(string) string) (party, error) {
	var told struct {
		Cluster struct {
			Worker []string `json:"worker"`
			PS     []string `json:"ps"`
		} `json:"cluster"`
		Task struct {
			Type  string `json:"type"`
			Index int    `json:"index"`
		} `json:"task"`
	}
	if err := json.Unmarshal([]byte(variable("TF_CONFIG")), &told); err != nil {
		return party{}, fmt.Errorf("read TF_CONFIG: %w", err)
	}
	p := party{server: told.Task.Type == "ps", index: told.Task.Index, workers: told.Cluster.Worker, servers: told.Cluster.PS}
	all := p.workers
	if p.server {
		all = p.servers
	}
	if len(p.workers) == 0 || p.index < 0 || p.index >= len(all) {
		return party{}, fmt.Errorf("find this one's place in TF_CONFIG %s", variable("TF_CONFIG"))
	}
	return p, p.agrees(variable)
}

// agrees returns an error if PyTorch's variables differ from TF_CONFIG.
func (p party) agrees(variable func(string) string) error {
	want := map[string]string{"WORLD_SIZE": strconv.Itoa(len(p.workers)), "RANK": strconv.Itoa(p.index)}
	if p.server {
		want["RANK"] = "" // a server with a rank would take the place of a worker
	}
	host, port, err := net.SplitHostPort(p.workers[0])
	if err != nil {
		return fmt.Errorf("read where the first worker is: %w", err)
	}
	want["MASTER_ADDR"], want["MASTER_PORT"] = host, port
	var all error
	for name, value := range want {
		if got := variable(name); got != value {
			all = errors.Join(all, fmt.Errorf("%s is %q, and TF_CONFIG means %q", name, got, value))
		}
	}
	return all
}
