package kube

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/agent"
	"tidemill.dev/internal/runs/scheduler"
)

const (
	binDir  = "/tidemill/bin"
	workDir = "/tidemill/work"
	shmDir  = "/dev/shm"

	// An attempt's folder is below the mounted folder, because a mount point cannot be removed and
	// created again.
	attemptDir = workDir + "/attempt"

	volumeBin  = "tidemill-bin"
	volumeWork = "tidemill-work"
	volumeShm  = "tidemill-shm"

	// Disk of a container whose recipe sets none. The request is small, so that many runs fit on a
	// node. The limit keeps one run from filling the node's disk, which would end all pods there.
	askedDisk   = int64(1 << 30)
	defaultDisk = int64(50 << 30)
	agentDisk   = int64(128 << 20) // disk of the folder with the agent's binary

	// The user id of the command if the recipe names no user.
	nobody = int64(65532)

	defaultResource = "nvidia.com/gpu"
)

// install returns the init container that copies the agent into the pod, so that the user's image
// needs no agent.
func (s site) install() corev1.Container {
	least := corev1.ResourceList{corev1.ResourceCPU: cores(0.01), corev1.ResourceMemory: bytesOf(32 << 20), corev1.ResourceEphemeralStorage: bytesOf(agentDisk)}
	most := corev1.ResourceList{corev1.ResourceMemory: bytesOf(128 << 20), corev1.ResourceEphemeralStorage: bytesOf(2 * agentDisk)}
	return corev1.Container{Name: containerInstall, Image: s.image, Command: []string{"/tidemill-agent", "install", binDir},
		Resources:       corev1.ResourceRequirements{Requests: least, Limits: most},
		VolumeMounts:    []corev1.VolumeMount{{Name: volumeBin, MountPath: binDir}},
		SecurityContext: confined()}
}

// run returns the container of the user's image.
func (s site) run(a scheduler.Attempt, p config.Pool, t podPart) corev1.Container {
	return corev1.Container{Name: containerRun, Image: a.Plan.Image, Command: []string{binDir + "/agent", "run"},
		Env:             append(s.env(a, p, t), secretEnv(a.Plan.Secrets)...),
		Resources:       resources(t, p),
		VolumeMounts:    mounts(a.Plan.Inside),
		SecurityContext: confined(),
		// If an agent ends without a report, its last lines explain why.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError}
}

// env returns the agent's environment. The agent does not pass it to the command.
func (s site) env(a scheduler.Attempt, p config.Pool, t podPart) []corev1.EnvVar {
	all := []corev1.EnvVar{
		{Name: agent.EnvGateway, Value: s.gateway}, {Name: agent.EnvAttempt, Value: a.Name}, secretVariable(agent.EnvToken, secretName(a.Name), tokenKey),
		{Name: agent.EnvWork, Value: attemptDir}, fieldEnv(agent.EnvNode, "spec.nodeName"), fieldEnv(agent.EnvPod, "metadata.name"),
		{Name: agent.EnvGrace, Value: (a.Plan.Grace + savingFor).String()},
	}
	if mayLinger(a.Plan, p) {
		all = append(all, corev1.EnvVar{Name: agent.EnvLinger, Value: p.Linger.String()})
	}
	if !hasSeveralPods(a.Plan) {
		return all
	}
	return append(all, corev1.EnvVar{Name: agent.EnvPart, Value: t.kind},
		fieldEnv(agent.EnvIndex, "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
		corev1.EnvVar{Name: agent.EnvWorkers, Value: strings.Join(workers(a), ",")},
		corev1.EnvVar{Name: agent.EnvServers, Value: strings.Join(servers(a), ",")})
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// secretEnv returns variables with the user's secrets. Our processes never read the values.
func secretEnv(refs map[string]string) (all []corev1.EnvVar) {
	for _, variable := range slices.Sorted(maps.Keys(refs)) {
		name, key, _ := strings.Cut(refs[variable], "/")
		all = append(all, secretVariable(variable, name, key))
	}
	return all
}

func secretVariable(variable, secret, key string) corev1.EnvVar {
	return corev1.EnvVar{Name: variable, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key}}}
}

// resources requests CPU without a limit, so that a pod may use idle cores. Memory, disk and GPUs
// have limits, because a running process does not give them back.
func resources(t podPart, p config.Pool) corev1.ResourceRequirements {
	requests := corev1.ResourceList{corev1.ResourceEphemeralStorage: bytesOf(cmp.Or(t.disk, askedDisk))}
	limits := corev1.ResourceList{corev1.ResourceEphemeralStorage: bytesOf(diskLimit(t.disk))}
	if t.cpu > 0 {
		requests[corev1.ResourceCPU] = cores(t.cpu)
	}
	if t.memory > 0 {
		requests[corev1.ResourceMemory], limits[corev1.ResourceMemory] = bytesOf(t.memory), bytesOf(t.memory)
	}
	if t.gpus > 0 {
		name := corev1.ResourceName(gpuResource(p))
		requests[name], limits[name] = count(t.gpus), count(t.gpus)
	}
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// diskLimit returns the limit of a container's disk in bytes.
func diskLimit(set int64) int64 { return cmp.Or(set, defaultDisk) }

func gpuResource(p config.Pool) string {
	if p.Resource == "" {
		return defaultResource
	}
	return p.Resource
}

func cores(n float64) resource.Quantity {
	return *resource.NewMilliQuantity(int64(math.Round(n*1000)), resource.DecimalSI)
}

func bytesOf(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }

func count(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// podSecurity returns a strict security context. Only the user of the recipe can weaken it.
func podSecurity(user *int64) *corev1.PodSecurityContext {
	sc := &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	if user != nil && *user == 0 {
		sc.RunAsUser = new(int64(0))
		return sc
	}
	id := nobody
	if user != nil {
		id = *user
	}
	sc.RunAsNonRoot, sc.RunAsUser, sc.RunAsGroup, sc.FSGroup = new(true), new(id), new(id), new(id)
	sc.FSGroupChangePolicy = new(corev1.FSGroupChangeOnRootMismatch)
	return sc
}

func confined() *corev1.SecurityContext {
	return &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
}

// volumes returns our volumes and those of the recipe.
func volumes(in tidemill.Inside) []corev1.Volume {
	all := []corev1.Volume{emptyDir(volumeBin, corev1.StorageMediumDefault, agentDisk), emptyDir(volumeWork, corev1.StorageMediumDefault, diskLimit(in.Disk))}
	if in.Shm > 0 {
		all = append(all, emptyDir(volumeShm, corev1.StorageMediumMemory, in.Shm))
	}
	for i, v := range in.Volumes {
		all = append(all, corev1.Volume{Name: volumeName(i), VolumeSource: source(v)})
	}
	return all
}

func emptyDir(name string, medium corev1.StorageMedium, limit int64) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium, SizeLimit: new(bytesOf(limit))}}}
}

func source(v tidemill.Volume) (s corev1.VolumeSource) {
	switch {
	case v.Claim != "":
		s.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.Claim, ReadOnly: v.ReadOnly}
	case v.Secret != "":
		s.Secret = &corev1.SecretVolumeSource{SecretName: v.Secret}
	default:
		s.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: v.Config}}
	}
	return s
}

func mounts(in tidemill.Inside) []corev1.VolumeMount {
	all := []corev1.VolumeMount{{Name: volumeBin, MountPath: binDir, ReadOnly: true}, {Name: volumeWork, MountPath: workDir}}
	if in.Shm > 0 {
		all = append(all, corev1.VolumeMount{Name: volumeShm, MountPath: shmDir})
	}
	for i, v := range in.Volumes {
		all = append(all, corev1.VolumeMount{Name: volumeName(i), MountPath: v.At, ReadOnly: v.ReadOnly})
	}
	return all
}

// place sets which nodes a pod of a pool may use, and which it prefers.
func place(spec *corev1.PodSpec, plan tidemill.Plan, p config.Pool) {
	spec.NodeSelector = maps.Clone(p.Nodes)
	for _, t := range p.Tolerations {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: t.Key, Operator: corev1.TolerationOperator(t.Operator),
			Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	order := slices.Clone(p.Cards.NewestFirst)
	if plan.Priority <= 0 {
		slices.Reverse(order) // runs without priority prefer the oldest cards
	}
	if likes := weights(p.Cards.Label, order); len(likes) > 0 {
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: likes}}
	}
}

// weights returns preferences that fall evenly from the first card to the last. A pod still takes
// any free card.
func weights(label string, order []string) (all []corev1.PreferredSchedulingTerm) {
	const most, least = 100, 1 // bounds of Kubernetes
	for i, card := range order {
		weight := most
		if last := len(order) - 1; last > 0 {
			weight = most - i*(most-least)/last
		}
		all = append(all, prefer(weight, corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{card}}))
	}
	return all
}

// keepOff makes a pod without GPUs prefer nodes without cards.
func keepOff(spec *corev1.PodSpec, p config.Pool) {
	if p.Cards.Label == "" {
		return
	}
	away := prefer(100, corev1.NodeSelectorRequirement{Key: p.Cards.Label, Operator: corev1.NodeSelectorOpDoesNotExist})
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{away}}}
}

func prefer(weight int, what corev1.NodeSelectorRequirement) corev1.PreferredSchedulingTerm {
	return corev1.PreferredSchedulingTerm{Weight: int32(weight), Preference: corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{what}}}
}
