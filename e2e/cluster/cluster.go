//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"tidemill.dev/e2e/cluster/internal/box"
	"tidemill.dev/e2e/cluster/internal/node"
	"tidemill.dev/e2e/cluster/internal/recipe"
)

// cluster is a Kubernetes in a box.
type cluster struct {
	box   *box.Box
	cache recipe.Cache
	kwok  recipe.Cache // empty without kwok
	say   func(string, ...any)
	node  node.Node
	ca    []byte // certificate of the authority that signed the API server's
}

// patience bounds a stage, also on a machine with much other work.
const patience = 10 * time.Minute

// start starts the node's components.
func (c *cluster) start(w wishes) error {
	var err error
	if c.node, err = configuration(c.box, w); err != nil {
		return err
	}
	if c.ca, err = c.node.Write(time.Now()); err != nil {
		return err
	}
	if err := c.writeKubeconfigs(w.kubeconfig); err != nil {
		return err
	}
	if err := c.bringKwok(); err != nil {
		return err
	}
	plan := box.Plan{Cache: string(c.cache), CA: c.ca, Before: c.node.Before(), Components: c.node.Components()}
	if err := c.box.Start(plan); err != nil {
		return err
	}
	c.say("the sandbox %s has the node %s, which reaches this machine as %s", c.box.Name, c.box.Node, c.box.Host)
	return nil
}

// bringKwok copies kwok into the sandbox.
func (c *cluster) bringKwok() error {
	if c.kwok == "" {
		return nil
	}
	if err := os.MkdirAll(c.box.Etc("kwok"), 0o755); err != nil {
		return fmt.Errorf("make a folder for kwok: %w", err)
	}
	for _, file := range c.kwok.Kwok() {
		data, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(c.box.Etc("kwok", filepath.Base(file)), data, 0o755)
		}
		if err != nil {
			return fmt.Errorf("bring kwok: %w", err)
		}
	}
	return nil
}

func (c *cluster) writeKubeconfigs(also string) error {
	admin, err := os.ReadFile(c.box.Etc("admin.kubeconfig"))
	if err != nil {
		return fmt.Errorf("read the administrator's kubeconfig: %w", err)
	}
	files := []string{c.box.Kubeconfig()}
	if also != "" {
		files = append(files, also)
	}
	for _, file := range files {
		if err := os.WriteFile(file, admin, 0o600); err != nil {
			return fmt.Errorf("write the administrator's kubeconfig: %w", err)
		}
	}
	return nil
}

// settle installs the cluster's own objects and waits until the cluster works.
func (c *cluster) settle(ctx context.Context, w wishes) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the cluster was not ready after %s", patience))
	defer cancel()
	imported := make(chan error, 1)
	go func() { imported <- c.importOwn(ctx, !w.bare) }()
	steps := []step{
		{"the API server answers", c.untilAPI},
		{"what every cluster has is in", c.applyBase},
	}
	if !w.bare {
		steps = append(steps, step{"Knative's types and objects are in", c.applyKnative})
	}
	steps = append(steps,
		step{"images are in", func(context.Context) error { return <-imported }},
		step{"the node is ready", c.untilNode})
	if !w.bare {
		steps = append(steps, step{"Knative runs", c.untilKnative}, step{"Knative takes Services", c.untilTaken})
	}
	for _, step := range steps {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			return c.explain(ctx, err)
		}
		c.say("%s (%s)", step.done, since(began))
	}
	return nil
}

// step is a stage of coming up. done is its message when it has ended.
type step struct {
	done string
	do   func(context.Context) error
}

// explain adds the state of the pods to an error when time ran out.
func (c *cluster) explain(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	pods, _ := c.kubectl(late, nil, "get", "pods", "--all-namespaces", "--output=wide")
	events, _ := c.kubectl(late, nil, "get", "events", "--all-namespaces", "--field-selector=type=Warning")
	return fmt.Errorf("%w: %w\n%s\n%s", context.Cause(ctx), err, pods, events)
}

func (c *cluster) untilAPI(ctx context.Context) error {
	// kubectl would need a tenth of the machine's CPU for this.
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(c.ca)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}}}
	defer client.CloseIdleConnections()
	return until(ctx, func() error {
		answer, err := client.Get(fmt.Sprintf("https://%s:6443/readyz", c.box.Node))
		if err != nil {
			return err
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("the API server says %s", answer.Status)
		}
		return nil
	})
}

func (c *cluster) applyBase(ctx context.Context) error { return c.apply(ctx, c.cache.Base()) }

// apply does not validate the files, because they come from our cache, and the validation would
// cost more than the rest.
func (c *cluster) apply(ctx context.Context, file string) error {
	_, err := c.kubectl(ctx, nil, "apply", "--server-side", "--force-conflicts", "--validate=false", "--filename", file)
	return err
}

func (c *cluster) applyKnative(ctx context.Context) error {
	if err := c.apply(ctx, c.cache.Types()); err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, nil, "wait", "--for=condition=Established", "--timeout="+patience.String(), "customresourcedefinitions", "--all"); err != nil {
		return err
	}
	// An established type may still be unknown for a moment.
	return until(ctx, func() error { return c.apply(ctx, c.cache.Objects()) })
}

func (c *cluster) untilNode(ctx context.Context) error {
	return until(ctx, func() error {
		_, err := c.kubectl(ctx, nil, "wait", "--for=condition=Ready", "--timeout="+patience.String(), "node/"+c.node.Name)
		return err
	})
}

func (c *cluster) untilKnative(ctx context.Context) error {
	for _, namespace := range []string{"knative-serving", "tidemill-ingress"} {
		_, err := c.kubectl(ctx, nil, "wait", "--for=condition=Available", "--timeout="+patience.String(), "--namespace", namespace, "deployments", "--all")
		if err != nil {
			return err
		}
	}
	return nil
}

// aService is only a dry run for Knative's webhooks. It is never created.
const aService = `{"apiVersion": "serving.knative.dev/v1", "kind": "Service",
 "metadata": {"name": "try", "namespace": "default"},
 "spec": {"template": {"spec": {"containers": [{"image": "dev.local/pause:v1"}]}}}}`

func (c *cluster) untilTaken(ctx context.Context) error {
	return until(ctx, func() error {
		_, err := c.kubectl(ctx, []byte(aService), "create", "--dry-run=server", "--filename=-")
		return err
	})
}

// until tries again and again, and returns the last error when time is up.
func until(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *cluster) kubectl(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	program := filepath.Join(string(c.cache), "bin", "kube")
	cmd := exec.CommandContext(ctx, program, append([]string{"kubectl", "--kubeconfig", c.box.Kubeconfig(), "--cache-dir", c.box.Etc("discovered")}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out.Bytes(), nil
}

// importOwn imports the recipe's images into the node: pause first, because no pod starts without
// it.
func (c *cluster) importOwn(ctx context.Context, knative bool) error {
	if err := until(ctx, func() error { _, err := os.Stat(c.box.Inside("/run/containerd/containerd.sock")); return err }); err != nil {
		return err
	}
	for _, file := range c.cache.Images(knative) {
		if _, err := importImage(ctx, c.box.Place, file); err != nil {
			return err
		}
	}
	return nil
}
