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
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/agent"
	"tidemill.dev/internal/runs/scheduler"
)

// site holds the values that are the same in all manifests.
type site struct {
	names     tidemill.Names
	namespace string
	gateway   string // URL
	image     string // our own image
}

const (
	// savingFor is the time after the command's grace in which an agent that got SIGTERM saves the
	// output and reports.
	savingFor = time.Minute
	// overtime is the time to pull the image. A pod's deadline is the agent's longest time plus
	// overtime. The pod's deadline only ends an agent that hangs: the agent and the ledger check
	// the deadline of the attempt.
	overtime = 10 * time.Minute
	// keptFor is the time after which Kubernetes removes an ended Job that still exists.
	keptFor = 10 * time.Minute
)

// check returns an error for a plan that cannot or must not run in a cluster. It repeats checks of
// the config, because a plan is read from Kafka, where another program may have written it.
func check(p tidemill.Plan, w config.Withheld) error {
	switch withheld := w.Find(p.Secrets, p.Inside); {
	case withheld != "":
		return fmt.Errorf("%s is the install's own, and no run is given it: copy the needed content into another one, and name that in the recipe", withheld)
	case p.Image == "":
		return errors.New("a cluster runs images, and the recipe has a folder: give it run.image for run.dir")
	case len(p.Command) == 0:
		return errors.New("the recipe has an image and no command, and an image's own entry point cannot be read in a cluster: write it down as run.command")
	}
	return nil
}

// hasSeveralPods reports whether several containers work on one attempt.
func hasSeveralPods(p tidemill.Plan) bool { return p.Workers > 1 || p.Servers != nil }

// job returns the Job of an attempt: its only pod, or its workers.
func (s site) job(a scheduler.Attempt, p config.Pool) *batchv1.Job {
	t := podPart{kind: partWorker, count: max(a.Plan.Workers, 1), cpu: a.Plan.CPU, memory: a.Plan.Memory, disk: a.Plan.Inside.Disk, gpus: a.Plan.GPUs}
	j := s.jobOf(a, p, t, a.Name)
	place(&j.Spec.Template.Spec, a.Plan, p)
	if p.Queue != "" {
		j.Labels[labelQueue] = p.Queue
		j.Spec.Suspend = new(true) // Kueue resumes the Job when it is admitted
	}
	return j
}

// serverJob returns the Job of an attempt's parameter servers. Kubernetes deletes it together with
// the attempt's Job.
func (s site) serverJob(a scheduler.Attempt, p config.Pool, owner *batchv1.Job) *batchv1.Job {
	t := podPart{kind: partServer, count: a.Plan.Servers.Count, cpu: a.Plan.Servers.CPU, memory: a.Plan.Servers.Memory, disk: a.Plan.Inside.Disk}
	j := s.jobOf(a, p, t, serversName(a.Name))
	if a.Plan.GPUs == 0 {
		place(&j.Spec.Template.Spec, a.Plan, p)
	} else {
		keepOff(&j.Spec.Template.Spec, p)
	}
	j.OwnerReferences = ownedBy(owner)
	return j
}

// service returns the Service that gives the pods of an attempt DNS names. It publishes pods that
// are not ready, because they become ready only after they have found each other.
func (s site) service(a scheduler.Attempt, owner *batchv1.Job) *corev1.Service {
	meta := s.meta(a, serviceName(a.Name))
	meta.OwnerReferences = ownedBy(owner)
	return &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true,
		Selector: map[string]string{LabelInstall: s.names.Install(), LabelAttempt: a.Name}}}
}

// policy returns the rule that the pods of an attempt accept calls of each other only. The chart's
// rule closes all pods of runs, so without this rule the workers could not meet.
func (s site) policy(a scheduler.Attempt, owner *batchv1.Job) *networkingv1.NetworkPolicy {
	meta := s.meta(a, serviceName(a.Name))
	meta.OwnerReferences = ownedBy(owner)
	pods := metav1.LabelSelector{MatchLabels: map[string]string{LabelInstall: s.names.Install(), LabelAttempt: a.Name}}
	return &networkingv1.NetworkPolicy{ObjectMeta: meta, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: pods, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &pods}}}}}}
}

// secret returns the Secret with the attempt's token. In a variable of the Job, every account that
// may read Jobs could read it, and the role view of Kubernetes is enough for that.
func (s site) secret(a scheduler.Attempt, owner *batchv1.Job) *corev1.Secret {
	meta := s.meta(a, secretName(a.Name))
	meta.OwnerReferences = ownedBy(owner)
	return &corev1.Secret{ObjectMeta: meta, Immutable: new(true), Type: corev1.SecretTypeOpaque, Data: map[string][]byte{tokenKey: []byte(a.Token)}}
}

// podPart holds the values in which workers and servers of an attempt differ.
type podPart struct {
	kind   string
	count  int
	cpu    float64
	memory int64
	disk   int64 // bytes; 0 is the default
	gpus   int
}

func (s site) jobOf(a scheduler.Attempt, p config.Pool, t podPart, name string) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: s.meta(a, name), Spec: batchv1.JobSpec{
		Parallelism: new(int32(t.count)), Completions: new(int32(t.count)),
		BackoffLimit:            new(int32(0)), // each attempt has its own Job
		TTLSecondsAfterFinished: new(seconds32(keptFor)),
		Template:                s.pod(a, p, t),
	}}
	if hasSeveralPods(a.Plan) {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
	}
	return j
}

func (s site) meta(a scheduler.Attempt, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: s.namespace, Labels: labelsOf(s.names, a), Annotations: map[string]string{AnnotationKey: a.Key}}
}

// ownedBy returns the reference by which Kubernetes deletes an object together with a Job.
func ownedBy(j *batchv1.Job) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: j.Name, UID: j.UID}}
}

func (s site) pod(a scheduler.Attempt, p config.Pool, t podPart) corev1.PodTemplateSpec {
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
	if hasSeveralPods(a.Plan) {
		spec.Subdomain = serviceName(a.Name)
	}
	// A pod that waits for other workers, or for another attempt, has no deadline: the foreman ends
	// an attempt that hangs.
	if !mayLinger(a.Plan, p) && !hasSeveralPods(a.Plan) && a.Plan.Deadline > 0 {
		spec.ActiveDeadlineSeconds = new(seconds(agent.Longest(a.Plan.Deadline, a.Plan.Grace) + overtime))
	}
	return corev1.PodTemplateSpec{Spec: spec, ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{
		AnnotationKey: a.Key,
		// If a pod is moved to free a node, its work is lost, which costs more than the node.
		"cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
		"karpenter.sh/do-not-disrupt":                    "true",
	}}}
}

// mayLinger reports whether a pod waits for another attempt after this one. Pods of several workers
// do not wait, because they could only be used together.
func mayLinger(plan tidemill.Plan, p config.Pool) bool { return p.Linger > 0 && !hasSeveralPods(plan) }

func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

func seconds32(d time.Duration) int32 { return int32(seconds(d)) }

func references(names []string) (all []corev1.LocalObjectReference) {
	for _, name := range names {
		all = append(all, corev1.LocalObjectReference{Name: name})
	}
	return all
}

// The names are derived from the attempt's name, so that a second launch finds the existing
// objects. A Job's name may begin with a digit, as a run's id does; a Service's may not.

func serversName(attempt string) string { return attempt + "-servers" }

func serviceName(attempt string) string { return "run-" + attempt }

// secretPrefix begins the names of the Secrets with attempts' tokens. No recipe may name them.
const secretPrefix = "tidemill-attempt-"

// tokenKey is the key of the token in an attempt's Secret.
const tokenKey = "token"

func secretName(attempt string) string { return secretPrefix + attempt }

func volumeName(i int) string { return "volume-" + strconv.Itoa(i) }

// meetAt is the port on which each container of an attempt listens; MASTER_PORT is the port of the
// first worker.
const meetAt = 29500

// workers returns the addresses of an attempt's workers, by rank.
func workers(a scheduler.Attempt) []string {
	return addresses(a.Name, serviceName(a.Name), max(a.Plan.Workers, 1))
}

// servers returns the addresses of an attempt's parameter servers.
func servers(a scheduler.Attempt) []string {
	if a.Plan.Servers == nil {
		return nil
	}
	return addresses(serversName(a.Name), serviceName(a.Name), a.Plan.Servers.Count)
}

// addresses returns the names that the pods of an Indexed Job have through their Service. They are
// short, so that a resolver finds them in its first search domain.
func addresses(job, service string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = net.JoinHostPort(job+"-"+strconv.Itoa(i)+"."+service, strconv.Itoa(meetAt))
	}
	return all
}

// The labels of our objects. All objects have LabelInstall, which separates installs.
const (
	LabelInstall = "tidemill.dev/install"
	LabelRun     = "tidemill.dev/run"
	LabelAttempt = "tidemill.dev/attempt" // full name of the attempt; a reused pod has the name of its current attempt
	LabelRecipe  = "tidemill.dev/recipe"
	LabelPool    = "tidemill.dev/pool"
	LabelTeam    = "tidemill.dev/team"
	LabelPart    = "tidemill.dev/part" // worker or server
	LabelScorer  = "tidemill.dev/scorer"

	labelQueue = "kueue.x-k8s.io/queue-name"
)

// AnnotationKey holds the key of a run. A label cannot hold it, because a key is any text.
const AnnotationKey = "tidemill.dev/key"

// The parts of an attempt.
const (
	partWorker = "worker"
	partServer = "server"
)

// The containers of a pod.
const (
	containerRun     = "run"     // container of the user's image
	containerInstall = "install" // container of our image, which copies the agent
)

// labelsOf returns the labels of all objects of an attempt.
func labelsOf(names tidemill.Names, a scheduler.Attempt) map[string]string {
	all := map[string]string{LabelInstall: names.Install(), LabelRun: a.Run, LabelAttempt: a.Name,
		LabelRecipe: a.Recipe, LabelPool: a.Plan.Pool}
	if a.Plan.Team != "" {
		all[LabelTeam] = a.Plan.Team
	}
	return all
}
