package kube

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/agent"
	"tidemill.dev/internal/runs/scheduler"
)

// site is what the manifests of all attempts have in common.
type site struct {
	names     tidemill.Names
	namespace string
	gateway   string // URL
	image     string // ours
}

const (
	// savingFor is how long an agent that was told to leave may save and tell
	// after its command has had its grace.
	savingFor = time.Minute
	// overtime is how long a pod may be there beyond what its agent may take: its
	// image comes meanwhile. It ends an agent that hangs, and nothing else: whether
	// an attempt is late, the agent and the ledger say.
	overtime = 10 * time.Minute
	// keptFor is how long what has ended stays if no controller removes it.
	keptFor = 10 * time.Minute
)

// check finds what can be launched in no cluster, and what is not to be. A plan is
// read from the log, which whoever writes to Kafka could have written: so what the
// config has been checked for is checked here again.
func check(p tidemill.Plan, w config.Withheld) error {
	switch withheld := w.Find(p.Secrets, p.Inside); {
	case withheld != "":
		return fmt.Errorf("%s is the install's own, and no run is given it: copy what the run needs into one of its own, and name that in the recipe", withheld)
	case p.Image == "":
		return errors.New("a cluster runs images, and the recipe has a folder: give it run.image for run.dir")
	case len(p.Command) == 0:
		return errors.New("the recipe has an image and no command, and an image's own entry point cannot be read in a cluster: write it down as run.command")
	}
	return nil
}

// together reports whether several containers work on one attempt.
func together(p tidemill.Plan) bool { return p.Workers > 1 || p.Servers != nil }

// job is the Job of an attempt: its only pod, or its workers.
func (s site) job(a scheduler.Attempt, p config.Pool) *batchv1.Job {
	t := part{kind: partWorker, count: max(a.Plan.Workers, 1), cpu: a.Plan.CPU, memory: a.Plan.Memory, gpus: a.Plan.GPUs}
	j := s.jobOf(a, p, t, a.Name)
	place(&j.Spec.Template.Spec, a.Plan, p)
	if p.Queue != "" {
		j.Labels[labelQueue] = p.Queue
		j.Spec.Suspend = new(true) // Kueue lets it go when its turn has come
	}
	return j
}

// serverJob is the Job of an attempt's parameter servers. It goes with the
// attempt's.
func (s site) serverJob(a scheduler.Attempt, p config.Pool, owner *batchv1.Job) *batchv1.Job {
	t := part{kind: partServer, count: a.Plan.Servers.Count, cpu: a.Plan.Servers.CPU, memory: a.Plan.Servers.Memory}
	j := s.jobOf(a, p, t, serversName(a.Name))
	if a.Plan.GPUs == 0 {
		place(&j.Spec.Template.Spec, a.Plan, p)
	} else {
		keepOff(&j.Spec.Template.Spec, p)
	}
	j.OwnerReferences = ownedBy(owner)
	return j
}

// service gives the pods of an attempt names. They have them before they are
// ready, for they are ready once they have found each other.
func (s site) service(a scheduler.Attempt, owner *batchv1.Job) *corev1.Service {
	meta := s.meta(a, serviceName(a.Name))
	meta.OwnerReferences = ownedBy(owner)
	return &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true,
		Selector: map[string]string{LabelInstall: s.names.Install(), LabelAttempt: a.Name}}}
}

// part is what the workers and the servers of an attempt differ in.
type part struct {
	kind   string
	count  int
	cpu    float64
	memory int64
	gpus   int
}

func (s site) jobOf(a scheduler.Attempt, p config.Pool, t part, name string) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: s.meta(a, name), Spec: batchv1.JobSpec{
		Parallelism: new(int32(t.count)), Completions: new(int32(t.count)),
		BackoffLimit:            new(int32(0)), // another attempt is a Job of its own
		TTLSecondsAfterFinished: new(seconds32(keptFor)),
		Template:                s.pod(a, p, t),
	}}
	if together(a.Plan) {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
	}
	return j
}

func (s site) meta(a scheduler.Attempt, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: s.namespace, Labels: labelsOf(s.names, a), Annotations: map[string]string{AnnotationKey: a.Key}}
}

// ownedBy has the collector of garbage remove what goes with a Job.
func ownedBy(j *batchv1.Job) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: j.Name, UID: j.UID}}
}

func (s site) pod(a scheduler.Attempt, p config.Pool, t part) corev1.PodTemplateSpec {
	labels := maps.Clone(labelsOf(s.names, a))
	labels[LabelPart] = t.kind
	spec := corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: new(seconds(a.Plan.Grace + savingFor)),
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		PriorityClassName:             p.PriorityClass,
		SecurityContext:               podSecurity(a.Plan.Inside.User),
		InitContainers:                []corev1.Container{s.install()},
		Containers:                    []corev1.Container{s.run(a, p, t)},
		Volumes:                       volumes(a.Plan.Inside),
		ImagePullSecrets:              references(a.Plan.Inside.PullSecrets),
	}
	if p.RuntimeClass != "" && t.kind == partWorker {
		spec.RuntimeClassName = new(p.RuntimeClass)
	}
	if together(a.Plan) {
		spec.Subdomain = serviceName(a.Name)
	}
	// One that waits for others, or for another attempt, is not late by that: the
	// foreman ends what hangs there.
	if !lingers(a.Plan, p) && !together(a.Plan) && a.Plan.Deadline > 0 {
		spec.ActiveDeadlineSeconds = new(seconds(agent.Longest(a.Plan.Deadline, a.Plan.Grace) + overtime))
	}
	return corev1.PodTemplateSpec{Spec: spec, ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{
		AnnotationKey: a.Key,
		// What moves pods about to save nodes would cost more than it saves.
		"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
		"karpenter.sh/do-not-disrupt":                    "true",
	}}}
}

// lingers reports whether a pod waits for another attempt after this one. Pods
// that worked together do not: they would have to be found together again.
func lingers(plan tidemill.Plan, p config.Pool) bool { return p.Linger > 0 && !together(plan) }

func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

func seconds32(d time.Duration) int32 { return int32(seconds(d)) }

func references(names []string) (all []corev1.LocalObjectReference) {
	for _, name := range names {
		all = append(all, corev1.LocalObjectReference{Name: name})
	}
	return all
}

// The names follow from the attempt's, so that whoever launches it once more
// finds what is there. A Job's name may begin with a digit, as a run's id does; a
// Service's may not.

func serversName(attempt string) string { return attempt + "-servers" }

func serviceName(attempt string) string { return "run-" + attempt }

func volumeName(i int) string { return "volume-" + strconv.Itoa(i) }

// meetAt is where each container of an attempt listens: MASTER_PORT of the first.
const meetAt = 29500

// workers are the addresses of an attempt's workers, by their ranks.
func workers(a scheduler.Attempt) []string {
	return addresses(a.Name, serviceName(a.Name), max(a.Plan.Workers, 1))
}

// servers are those of its parameter servers.
func servers(a scheduler.Attempt) []string {
	if a.Plan.Servers == nil {
		return nil
	}
	return addresses(serversName(a.Name), serviceName(a.Name), a.Plan.Servers.Count)
}

// addresses are the names that the pods of an Indexed Job have by their Service.
// They are short, so that the first of a resolver's search domains finds them.
func addresses(job, service string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = net.JoinHostPort(job+"-"+strconv.Itoa(i)+"."+service, strconv.Itoa(meetAt))
	}
	return all
}

// The labels that our objects bear. An install is told from others by the first,
// which stands on everything of ours.
const (
	LabelInstall = "tidemill.dev/install"
	LabelRun     = "tidemill.dev/run"
	LabelAttempt = "tidemill.dev/attempt" // its whole name; of a pod that was taken over, that of the attempt it does now
	LabelRecipe  = "tidemill.dev/recipe"
	LabelPool    = "tidemill.dev/pool"
	LabelTeam    = "tidemill.dev/team"
	LabelPart    = "tidemill.dev/part" // worker or server
	LabelScorer  = "tidemill.dev/scorer"

	labelQueue = "kueue.x-k8s.io/queue-name"
)

// AnnotationKey holds the key of a run, which is any text and so no label.
const AnnotationKey = "tidemill.dev/key"

// The parts of an attempt.
const (
	partWorker = "worker"
	partServer = "server"
)

// The containers of a pod.
const (
	containerRun     = "run"     // the user's image
	containerInstall = "install" // ours, which brings the agent
)

// labelsOf are the labels of all that belongs to an attempt.
func labelsOf(names tidemill.Names, a scheduler.Attempt) map[string]string {
	all := map[string]string{LabelInstall: names.Install(), LabelRun: a.Run, LabelAttempt: a.Name,
		LabelRecipe: a.Recipe, LabelPool: a.Plan.Pool}
	if a.Plan.Team != "" {
		all[LabelTeam] = a.Plan.Team
	}
	return all
}
