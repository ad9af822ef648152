package config

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
	"tidemill.dev/config/spelling"
)

const (
	maxImage     = 500 // characters
	maxCommand   = 1000
	maxVariables = 1000
	maxGPUs      = 1024
	maxTries     = 100
	minDeadline  = time.Second
	maxDeadline  = 30 * 24 * time.Hour
	maxGrace     = time.Hour
	minMemory    = 4 << 20
	maxMemory    = 64 << 40
	minOutput    = 1
	maxOutput    = 100 << 40
	minLog       = 4 << 10
	maxLog       = 100 << 30
)

func defaultJob() Job {
	return Job{Pool: DefaultPool, Deadline: time.Hour, Grace: 30 * time.Second, Attempts: 3,
		Backoff:   Backoff{Kind: Exponential, First: 10 * time.Second, Cap: 5 * time.Minute},
		MaxOutput: 10 << 30, MaxLog: 64 << 20}
}

func (d *draft) readJob(v value, j *Job) {
	given := v.presentFields(slices.Concat([]field{
		{"image", j.readImage},
		{"dir", j.readDir},
		{"command", readCommand(&j.Command)},
		{"env", j.readEnv},
		{"secrets", j.readSecrets},
		{"cpu", readCores(&j.CPU)},
		{"memory", readBytes(&j.Memory, minMemory, maxMemory)},
		{"gpus", readInteger(&j.GPUs, 0, maxGPUs)},
		{"pool", func(v value) { j.Pool = d.readPoolOf(v) }},
		{"priority", readInteger(&j.Priority, 0, maxPriority)},
		{"deadline", readWait(&j.Deadline, minDeadline, maxDeadline)},
		{"grace", readWait(&j.Grace, time.Second, maxGrace)},
		{"attempts", readInteger(&j.Attempts, 1, maxTries)},
		{"backoff", j.readBackoff},
		{"maxOutput", readBytes(&j.MaxOutput, minOutput, maxOutput)},
		{"maxLog", readBytes(&j.MaxLog, minLog, maxLog)},
	}, j.togetherFields(), j.insideFields())...)
	if given["image"] && given["dir"] {
		v.problem("has an image and a dir; a run is one of them, keep one")
	} else if !given["dir"] {
		v.require(v.node, given, "image", "name a container's image, or with dir a folder to run the command in")
	}
	if !given["image"] {
		v.require(v.node, given, "command", "say what to run, such as [python3, train.py]")
	}
	j.checkInside(v, given)
	for _, name := range slices.Sorted(maps.Keys(j.Secrets)) {
		if _, twice := j.Env[name]; twice {
			v.child("secrets", v.nodeAt("secrets")).child(name, v.node).problem("is also in env; keep one")
		}
	}
}

func (j *Job) readImage(v value) {
	text, ok := v.text()
	switch {
	case !ok:
	case len(text) > maxImage || strings.ContainsAny(text, " \t\n") || strings.HasPrefix(text, "-"):
		v.problem("%s is not an image's name; write it like registry.example/trainer:3", show(text))
	default:
		j.Image = text
	}
}

// readDir keeps a folder as it is written. Only the launcher of runs knows what it is relative
// to.
func (j *Job) readDir(v value) {
	if text, ok := v.text(); ok {
		j.Dir = text
	}
}

// readCommand accepts only a list, because the meaning of a text depends on the shell that
// splits it.
func readCommand(to *[]string) func(value) {
	return func(v value) {
		if v.node.Kind == yaml.ScalarNode && !isNull(v.node) {
			v.problem("must be a list of words, such as [python3, train.py]; for a shell write [sh, -c, %s]", show(v.node.Value))
			return
		}
		items := v.items()
		switch {
		case v.node.Kind == yaml.SequenceNode && len(items) == 0:
			v.problem("is an empty list; say what to run, such as [python3, train.py]")
		case len(items) > maxCommand:
			v.problem("has more than %d words; write them into a script", maxCommand)
			return
		}
		for _, item := range items {
			if text, ok := item.text(); ok {
				*to = append(*to, text)
			}
		}
	}
}

var variable = shaped(200, `^[A-Za-z_][A-Za-z0-9_]*$`)

// contract is the prefix of the variables that the agent sets.
const contract = "TIDEMILL_"

// CheckVariable returns an error if a recipe must not set an environment variable of that name.
func CheckVariable(name string) error {
	switch {
	case !variable.fits(name):
		return fmt.Errorf("%s is not a variable's name; use letters, digits and _, and do not begin with a digit", show(name))
	case strings.HasPrefix(name, contract):
		return fmt.Errorf("%s is set by Tidemill, as all variables that begin with %s; choose another name", show(name), contract)
	}
	return nil
}

// variables iterates over a mapping whose keys are environment variables.
func (v value) variables(read func(name string, v value)) {
	n := 0
	for key, child := range v.pairs() {
		if n++; n > maxVariables {
			child.problemAt(key, "is one variable more than %d", maxVariables)
			return
		}
		if err := CheckVariable(key.Value); err != nil {
			child.problemAt(key, "%v", err)
			continue
		}
		read(key.Value, child)
	}
}

func (j *Job) readEnv(v value) {
	v.variables(func(name string, v value) {
		if v.isEmptyText() { // an empty variable differs from none
			put(&j.Env, name, "")
		} else if text, ok := v.template(faultOf); ok {
			put(&j.Env, name, text)
		}
	})
}

// A secret is named by a Secret of Kubernetes and a key in its data.
var (
	secretName = shaped(202, `^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
	secretKey  = shaped(201, `^[A-Za-z0-9_-][A-Za-z0-9._-]*$`)
)

func isSecret(text string) bool {
	name, key, both := strings.Cut(text, "/")
	return both && secretName.fits(name) && secretKey.fits(key)
}

func (j *Job) readSecrets(v value) {
	v.variables(func(name string, v value) {
		text, ok := v.text()
		switch {
		case !ok:
		case !isSecret(text):
			v.problem("is not a secret's name and key; write NAME/KEY, such as hugging-face/token, and never the secret itself") // the message does not repeat the text, which may be the secret
		default:
			put(&j.Secrets, name, text)
		}
	})
}

func put(to *map[string]string, key, text string) {
	if *to == nil {
		*to = map[string]string{}
	}
	(*to)[key] = text
}

func (d *draft) readPoolOf(v value) string {
	name, ok := v.text()
	if !ok {
		return DefaultPool
	}
	d.later = append(d.later, func() {
		if _, known := d.poolOf[name]; known {
			return
		}
		if near, ok := spelling.Nearest(name, slices.Sorted(maps.Keys(d.poolOf))); ok {
			v.problem("there is no pool %s; did you mean %q?", show(name), near)
			return
		}
		v.problem("there is no pool %s; write it under pools, or name an existing pool", show(name))
	})
	return name
}

// readBackoff reads the same keys as for a delivery. A backoff of attempts always doubles,
// because each attempt uses a machine.
func (j *Job) readBackoff(v value) {
	if v.node.Kind == yaml.ScalarNode && !isNull(v.node) {
		v.oneOf(string(Exponential))
		return
	}
	b := Backoff{Kind: Exponential}
	given := v.presentFields(
		field{"kind", func(v value) { v.oneOf(string(Exponential)) }},
		field{"first", readWait(&b.First, minWait, maxWait)},
		field{"cap", readWait(&b.Cap, minWait, maxWait)},
	)
	switch {
	case given["first"] && given["cap"] && b.First > b.Cap:
		v.child("cap", v.nodeAt("cap")).problem("%s is less than first, which is %s", showSpan(b.Cap), showSpan(b.First))
	case given["cap"] && !given["first"]:
		b.First = min(j.Backoff.First, b.Cap)
	default:
		b.First = cmp.Or(b.First, j.Backoff.First)
		b.Cap = max(cmp.Or(b.Cap, j.Backoff.Cap), b.First)
	}
	j.Backoff = b
}

const (
	maxWorkers     = 1000
	maxServers     = 1000
	maxUser        = 1<<31 - 1
	maxPullSecrets = 20
	maxVolumes     = 50
	minShm         = 1 << 20
	minDisk        = 256 << 20
)

// togetherFields are the fields of a recipe about the workers and servers of one attempt.
func (j *Job) togetherFields() []field {
	return []field{
		{"workers", func(v value) {
			if n, ok := v.integer(1, maxWorkers); ok && n > 1 {
				j.Workers = n
			}
		}},
		{"servers", j.readServers},
	}
}

func (j *Job) readServers(v value) {
	j.Servers = new(tidemill.Servers)
	given := v.presentFields(
		field{"count", readInteger(&j.Servers.Count, 1, maxServers)},
		field{"command", readCommand(&j.Servers.Command)},
		field{"cpu", readCores(&j.Servers.CPU)},
		field{"memory", readBytes(&j.Servers.Memory, minMemory, maxMemory)},
	)
	v.require(v.node, given, "count", "say how many parameter servers an attempt has")
}

// insideFields are the fields of a recipe about its container in a cluster.
func (j *Job) insideFields() []field {
	return []field{
		{"user", func(v value) {
			if n, ok := v.integer(0, maxUser); ok {
				j.Inside.User = new(int64(n))
			}
		}},
		{"pullSecrets", j.readPullSecrets},
		{"shm", readBytes(&j.Inside.Shm, minShm, maxMemory)},
		{"disk", readBytes(&j.Inside.Disk, minDisk, maxMemory)},
		{"volumes", j.readVolumes},
	}
}

// checkInside reports fields that need an image when the recipe has a folder instead.
func (j *Job) checkInside(v value, given map[string]bool) {
	if !given["dir"] || given["image"] {
		return
	}
	for _, f := range j.insideFields() {
		if given[f.key] {
			v.valueOf(f.key).problem("is for an image, and the recipe has a dir, which runs as it is on this machine; remove it")
		}
	}
}

func (j *Job) readPullSecrets(v value) {
	items := v.items()
	if len(items) > maxPullSecrets {
		v.problem("has more than %d secrets", maxPullSecrets)
		return
	}
	for _, item := range items {
		var name string
		readObject(&name, "Secret", maxResource)(item)
		switch {
		case name == "":
		case slices.Contains(j.Inside.PullSecrets, name):
			item.problem("%s appears twice; keep one", show(name))
		default:
			j.Inside.PullSecrets = append(j.Inside.PullSecrets, name)
		}
	}
}

func (j *Job) readVolumes(v value) {
	items := v.items()
	if len(items) > maxVolumes {
		v.problem("has more than %d volumes", maxVolumes)
		return
	}
	places := map[string]bool{}
	for _, item := range items {
		one := readVolume(item)
		if places[one.At] {
			item.valueOf("at").problem("%s has another volume already; choose another place", show(one.At))
		}
		if one.At != "" {
			places[one.At] = true
		}
		j.Inside.Volumes = append(j.Inside.Volumes, one)
	}
}

func readVolume(v value) (one tidemill.Volume) {
	given := v.presentFields(
		field{"claim", readObject(&one.Claim, "PersistentVolumeClaim", maxResource)},
		field{"secret", readObject(&one.Secret, "Secret", maxResource)},
		field{"config", readObject(&one.Config, "ConfigMap", maxResource)},
		field{"at", func(v value) { one.At = readMountPlace(v) }},
		field{"readOnly", func(v value) { one.ReadOnly, _ = v.boolean() }},
	)
	kinds := 0
	for _, kind := range []string{"claim", "secret", "config"} {
		if given[kind] {
			kinds++
		}
	}
	switch {
	case kinds > 1:
		v.problem("has more than one of claim, secret and config; keep one")
	case kinds == 0:
		v.require(v.node, given, "claim", "name a PersistentVolumeClaim, or with secret a Secret, or with config a ConfigMap")
	case !given["claim"] && given["readOnly"] && !one.ReadOnly:
		v.valueOf("readOnly").problem("a Secret or a ConfigMap cannot be written to; remove it")
	}
	v.require(v.node, given, "at", "say where it is mounted, such as /data")
	one.ReadOnly = one.ReadOnly || kinds == 1 && !given["claim"]
	return one
}

// notToMount are folders that belong to Tidemill or the kernel.
var notToMount = []string{"/tidemill", "/proc", "/sys", "/dev"} // read only

func readMountPlace(v value) string {
	at, ok := v.text()
	switch {
	case !ok:
		return ""
	case !path.IsAbs(at) || path.Clean(at) != at || at == "/" || len(at) > maxPath || strings.ContainsAny(at, ":\n\t"):
		v.problem("%s is not a folder's absolute path; write it like /data", show(at))
		return ""
	}
	for _, dir := range notToMount {
		if at == dir || strings.HasPrefix(at, dir+"/") {
			v.problem("%s is in %s, which is not the recipe's; choose another place", show(at), dir)
			return ""
		}
	}
	return at
}
