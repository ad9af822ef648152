package cli

import (
	"errors"
	"net/url"
	"strconv"
	"strings"

	"tidemill.dev/config"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/platform"
)

// clusterFlags say how the processes of one install find each other, and their Kubernetes.
type clusterFlags struct {
	kubernetes                            bool
	kubeconfig, namespace, runs           string
	agentsAt, image, secret, functionsAre string
	withhold                              string
}

func (c *clusterFlags) Flags(f *command.FlagSet) {
	f.Yes(&c.kubernetes, "kubernetes", "use the cluster of this process: launch runs as Jobs, scale scorers, find Knative Services")
	f.Text(&c.kubeconfig, "kubeconfig", "", "FILE", "the same, with the cluster of a kubeconfig")
	f.Text(&c.namespace, "namespace", "", "NAME", "namespace of all that (default: that of the pod or of the kubeconfig)")
	f.Text(&c.runs, "runs-namespace", "", "NAME", "namespace of the Jobs and pods of runs (default: the same)")
	f.Text(&c.agentsAt, "agents-at", "", "URL", "URL of the gateway for the agents in the pods of runs")
	f.Text(&c.image, "image", "", "IMAGE", "image of Tidemill, from which the pods of runs copy the agent")
	f.Text(&c.secret, "run-secret", "", "FILE", "file with 32 random bytes, raw or base64, the same for all processes: it authenticates attempts and functions")
	f.Text(&c.withhold, "withhold", "", "KIND/NAME,…", "objects that no recipe may name: secret/NAME and claim/NAME; a trailing * matches any rest")
	f.Text(&c.functionsAre, "functions", "", "knative|URL", "address of train, promote and forget for the dispatcher: Knative Services, or a URL, which may have {function} in it")
	for flag, variable := range map[string]string{
		"kubernetes": "TIDEMILL_KUBERNETES", "kubeconfig": "TIDEMILL_KUBECONFIG", "namespace": "TIDEMILL_NAMESPACE",
		"runs-namespace": "TIDEMILL_RUNS_NAMESPACE",
		"agents-at":      "TIDEMILL_AGENTS_AT", "image": "TIDEMILL_IMAGE", "run-secret": "TIDEMILL_RUN_SECRET_FILE", "functions": "TIDEMILL_FUNCTIONS",
		"withhold": "TIDEMILL_WITHHOLD",
	} {
		f.FromEnv(flag, variable)
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

// Place returns the limits of the cluster on the config.
func (c *clusterFlags) place() (config.Place, error) {
	withheld, err := config.ParseWithheld(c.withhold)
	if err != nil {
		return config.Place{}, command.Usagef("--withhold: %v", err)
	}
	return config.Place{Namespace: c.namespace, Withheld: withheld}, nil
}

// checkURL checks an address that others call. It may be empty.
func checkURL(flag, text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return command.Usagef("%s: give a URL such as http://tidemill.example:8080", flag)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return command.Usagef("%s: give the address alone, without a user, a query or a fragment", flag)
	}
	return nil
}

// scoringFlags limit the memory of models, and name their cache on disk.
type scoringFlags struct{ memory, cache string }

func (m *scoringFlags) Flags(f *command.FlagSet) {
	f.Text(&m.memory, "model-memory", "", "SIZE", "most memory for models, such as 512MiB or 4GiB (default 1GiB)")
	f.Text(&m.cache, "model-cache", "", "FOLDER", "folder for fetched models (default: models in the data folder of tidemill up, none for serve)")
	f.FromEnv("model-memory", "TIDEMILL_MODEL_MEMORY")
	f.FromEnv("model-cache", "TIDEMILL_MODEL_CACHE")
}

func (m *scoringFlags) accept() error {
	if _, err := parseMemory(m.memory); err != nil {
		return command.Usagef("--model-memory %q: %v", m.memory, err)
	}
	return nil
}

func (m *scoringFlags) options() platform.ScoringOptions {
	memory, _ := parseMemory(m.memory) // accept has checked it
	return platform.ScoringOptions{Memory: memory, Dir: m.cache}
}

const (
	leastMemory = 16 << 20
	mostMemory  = 1 << 42
)

// parseMemory parses a size. Empty is 0, the default.
func parseMemory(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	number, factor := text, int64(1)
	for i, unit := range []string{"MiB", "GiB", "TiB"} {
		if n, ok := strings.CutSuffix(text, unit); ok {
			number, factor = n, 1<<(10*(i+2))
		}
	}
	n, err := strconv.ParseUint(number, 10, 42)
	if err != nil || int64(n) > mostMemory/factor || int64(n)*factor < leastMemory {
		return 0, errors.New("give 16MiB to 4TiB, such as 512MiB or 4GiB")
	}
	return int64(n) * factor, nil
}

// needs returns an error if the role lacks flags.
func (r *serving) needs(a config.Addresses) error {
	switch {
	case r.role == scorerRole && (a.Redis == "" || a.Store == ""):
		return command.Usagef("a scorer needs Redis for the champions and the object store for the models: give --redis and --store")
	case r.role == functionRole && (a.Redis == "" || a.Store == ""):
		return command.Usagef("the function %s needs Redis for the state of runs, and the object store: give --redis and --store", r.name)
	case r.role == functionRole && r.cluster.secret == "":
		return command.Usagef("the function %s answers only callers that have its secret: give --run-secret, the same file as the dispatcher's", r.name)
	case r.role == dispatcherRole && r.cluster.functionsAre != "" && r.cluster.secret == "":
		return command.Usagef("functions in other processes (--functions) answer only callers that have their secret: give --run-secret, the same file as theirs")
	case r.role == dispatcherRole && r.cluster.functionsAre == platform.Knative && !r.cluster.kubernetes:
		return command.Usagef("--functions knative reads their addresses from Kubernetes: give --kubernetes or --kubeconfig")
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
	return command.Usagef("launching runs in Kubernetes also needs %s", strings.Join(missing, ", "))
}

// launches reports whether the role starts attempts. Only these roles may make Jobs.
func (r *serving) launches() bool {
	return r.cluster.kubernetes && (r.role == controllerRole || r.role == functionRole && r.name == "train")
}

// options returns what the role opens: no more than it needs, for less memory and fewer rights.
func (r *serving) options(a config.Addresses) platform.Options {
	o := platform.Options{Addresses: a, Security: r.Security, RedisSecurity: r.Redis, OwnStreams: true, Reorder: r.reorder,
		Scoring: r.scoring.options(), Secret: r.cluster.secret}
	if r.role == dispatcherRole {
		o.FunctionsAt = r.cluster.functionsAre
	}
	if r.withRuns(a) {
		o.Runs = &platform.RunsOptions{Recipes: r.Source().Folder(), Launch: r.launches()}
	}
	if r.launches() || r.role == dispatcherRole && r.cluster.kubernetes {
		o.Cluster = &platform.ClusterOptions{Kubeconfig: r.cluster.kubeconfig, Namespace: r.cluster.namespace, Runs: r.cluster.runs,
			Gateway: r.cluster.agentsAt, Image: r.cluster.image, Withheld: r.Place.Withheld}
	}
	return o
}

// withRuns reports whether the role works on runs. Without them a gateway only takes events, and a
// controller only makes ticks.
func (r *serving) withRuns(a config.Addresses) bool {
	switch r.role {
	case gatewayRole, controllerRole, functionRole:
		return a.Redis != "" && a.Store != ""
	}
	return false
}
