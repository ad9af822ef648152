package main

import (
	"net/url"
	"strings"

	"tidemill.dev/config"
	"tidemill.dev/internal/platform"
)

// clusterFlags say how processes of one install find each other, and the
// Kubernetes that they run in.
type clusterFlags struct {
	kubernetes                            bool
	kubeconfig, namespace                 string
	agentsAt, image, secret, functionsAre string
	withhold                              string
}

func (c *clusterFlags) flags(f *flagSet) {
	f.yes(&c.kubernetes, "kubernetes", "have runs be Jobs, scale scorers and find Knative Services, in the cluster that this process runs in")
	f.text(&c.kubeconfig, "kubeconfig", "", "FILE", "the same, in the cluster that a kubeconfig names")
	f.text(&c.namespace, "namespace", "", "NAME", "where all of that is (default the pod's own, or the kubeconfig's)")
	f.text(&c.agentsAt, "agents-at", "", "URL", "where the agents of runs reach the gateway, from their pods")
	f.text(&c.image, "image", "", "IMAGE", "Tidemill's own, which brings the agent into the pods of runs")
	f.text(&c.secret, "run-secret", "", "FILE", "32 random bytes, raw or as base64, the same for all processes: attempts of runs and our functions know us by it")
	f.text(&c.withhold, "withhold", "", "KIND/NAME,…", "what no recipe may name: secret/NAME and claim/NAME; a * at the end of a name stands for any rest")
	f.text(&c.functionsAre, "functions", "", "knative|URL", "where the dispatcher finds train, promote and forget: Knative Services, or a URL, which may have {function} in it")
	for flag, variable := range map[string]string{
		"kubernetes": "TIDEMILL_KUBERNETES", "kubeconfig": "TIDEMILL_KUBECONFIG", "namespace": "TIDEMILL_NAMESPACE",
		"agents-at": "TIDEMILL_AGENTS_AT", "image": "TIDEMILL_IMAGE", "run-secret": "TIDEMILL_RUN_SECRET_FILE", "functions": "TIDEMILL_FUNCTIONS",
		"withhold": "TIDEMILL_WITHHOLD",
	} {
		f.fromEnv(flag, variable)
	}
}

func (c *clusterFlags) accept() error {
	if c.kubeconfig != "" {
		c.kubernetes = true
	}
	if err := checkURL("--agents-at", c.agentsAt); err != nil {
		return err
	}
	if c.functionsAre == platform.Knative {
		return nil
	}
	return checkURL("--functions", platform.FunctionAt(c.functionsAre, "train"))
}

// place is what the cluster means for the config.
func (c *clusterFlags) place() (config.Place, error) {
	withheld, err := config.ParseWithheld(c.withhold)
	if err != nil {
		return config.Place{}, usagef("--withhold: %v", err)
	}
	return config.Place{Namespace: c.namespace, Withheld: withheld}, nil
}

// checkURL takes an address that others call; empty is none.
func checkURL(flag, text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return usagef("%s: give a URL such as http://tidemill.example:8080", flag)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return usagef("%s: give the address alone, without a user, a query or a fragment", flag)
	}
	return nil
}

// needs says what a role lacks of all this; nil if it has what it takes.
func (r *serving) needs(a config.Addresses) error {
	switch {
	case r.role == scorerRole && (a.Redis == "" || a.Store == ""):
		return usagef("a scorer needs a Redis, to know the champions from, and the object store, to read models from: give --redis and --store")
	case r.role == functionRole && (a.Redis == "" || a.Store == ""):
		return usagef("the function %s needs a Redis, where the state of runs is kept, and the object store: give --redis and --store", r.name)
	case r.role == functionRole && r.cluster.secret == "":
		return usagef("the function %s answers only who shares a secret with it: give --run-secret, the same file as the dispatcher's", r.name)
	case r.role == dispatcherRole && r.cluster.functionsAre != "" && r.cluster.secret == "":
		return usagef("functions in other processes (--functions) answer only who shares a secret with them: give --run-secret, the same file as theirs")
	case r.role == dispatcherRole && r.cluster.functionsAre == platform.Knative && !r.cluster.kubernetes:
		return usagef("--functions knative asks Kubernetes where they are: give --kubernetes, or --kubeconfig")
	case r.launches():
		return r.needsToLaunch(a)
	}
	return nil
}

func (r *serving) needsToLaunch(a config.Addresses) error {
	var missing []string
	for _, one := range []struct{ flag, value string }{
		{"--redis", a.Redis}, {"--store", a.Store}, {"--run-secret", r.cluster.secret}, {"--agents-at", r.cluster.agentsAt}, {"--image", r.cluster.image},
	} {
		if one.value == "" {
			missing = append(missing, one.flag)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return usagef("to launch runs in Kubernetes it takes %s, too", strings.Join(missing, ", "))
}

// launches tells whether the role begins attempts. Only these may make Jobs; the
// others leave that to them.
func (r *serving) launches() bool {
	return r.cluster.kubernetes && (r.role == keeperRole || r.role == functionRole && r.name == "train")
}

// options are what the role opens. The fewer, the smaller and the less it may.
func (r *serving) options(a config.Addresses) platform.Options {
	o := platform.Options{Addresses: a, Security: r.security, RedisSecurity: r.redis, OwnStreams: true, Reorder: r.reorder,
		Scoring: r.scoring.options(), Secret: r.cluster.secret}
	if r.role == dispatcherRole {
		o.FunctionsAt = r.cluster.functionsAre
	}
	if r.withRuns(a) {
		o.Runs = &platform.RunsOptions{Recipes: r.source().folder(), Launch: r.launches()}
	}
	if r.launches() || r.role == dispatcherRole && r.cluster.kubernetes {
		o.Cluster = &platform.ClusterOptions{Kubeconfig: r.cluster.kubeconfig, Namespace: r.cluster.namespace,
			Gateway: r.cluster.agentsAt, Image: r.cluster.image, Withheld: r.place.Withheld}
	}
	return o
}

// withRuns: a gateway without them is a door for events alone, and a keeper only
// keeps the clock.
func (r *serving) withRuns(a config.Addresses) bool {
	switch r.role {
	case gatewayRole, keeperRole, functionRole:
		return a.Redis != "" && a.Store != ""
	}
	return false
}
