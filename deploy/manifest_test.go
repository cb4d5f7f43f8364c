package deploy

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	kubeflow "github.com/kubeflow/trainer/v2/pkg/constants"
	"github.com/stretchr/testify/require"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"octet/backend/world"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"
)

// decode decodes the objects of a manifest, which must have these types in this order, and no
// fields that the types lack.
func decode(t *testing.T, file string, objects ...any) {
	t.Helper()
	text, err := os.ReadFile(path.Join("kubernetes", file))
	require.NoError(t, err)
	documents := bytes.Split(text, []byte("\n---\n"))
	require.Len(t, documents, len(objects))
	for i, object := range objects {
		require.NoError(t, yaml.UnmarshalStrict(documents[i], object), "object %d", i)
	}
}

// requireType requires the kind of an object. Decoding does not check it.
func requireType(t *testing.T, m meta.TypeMeta, version, kind string) {
	t.Helper()
	require.Equal(t, meta.TypeMeta{APIVersion: version, Kind: kind}, m)
}

// pods are the pods of an Indexed Job, as its controllers create them.
type pods struct {
	job      string // its name
	count    *int32
	spec     batch.JobSpec
	variable []core.EnvVar // that a controller adds
	network  string        // the headless service
}

// requireRanks requires that every pod finds its place among the ranks.
func (p *pods) requireRanks(t *testing.T) {
	t.Helper()
	require.Len(t, p.spec.Template.Spec.Containers, 1)
	c := p.spec.Template.Spec.Containers[0]
	require.NotNil(t, p.count)
	require.Greater(t, *p.count, int32(1))
	names := map[string]bool{}
	for index := range int(*p.count) {
		env := map[string]string{}
		for _, v := range slices.Concat(c.Env, p.variable) {
			require.NotContains(t, env, v.Name)
			env[v.Name] = v.Value
			if v.ValueFrom != nil {
				require.Empty(t, v.Value)
				require.NotNil(t, v.ValueFrom.FieldRef, v.Name)
				require.Equal(t, fmt.Sprintf("metadata.annotations['%s']", batch.JobCompletionIndexAnnotation), v.ValueFrom.FieldRef.FieldPath)
				env[v.Name] = fmt.Sprint(index)
			}
		}
		place, found, err := world.FromEnv(func(name string) (string, bool) {
			value, set := env[name]
			return value, set
		})
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, index, place.Rank)
		require.EqualValues(t, *p.count, place.Size)
		require.Zero(t, place.LocalRank, "a pod has one device")
		require.Equal(t, fmt.Sprintf("%s-0.%s:29500", p.job, p.network), place.Address)
		names[place.String()] = true
	}
	require.Len(t, names, int(*p.count))
}

// requireJob requires what every Job of ranks needs.
func (p *pods) requireJob(t *testing.T) {
	t.Helper()
	require.Equal(t, batch.IndexedCompletion, *p.spec.CompletionMode)
	pod := p.spec.Template.Spec
	require.Equal(t, core.RestartPolicyNever, pod.RestartPolicy, "podFailurePolicy requires it")
	require.GreaterOrEqual(t, *pod.TerminationGracePeriodSeconds, int64(60), "a stopped rank finishes its step and saves")
	c := pod.Containers[0]

	volumes := map[string]core.Volume{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
	}
	mounts := map[string]core.Volume{}
	for _, m := range c.VolumeMounts {
		require.Contains(t, volumes, m.Name)
		mounts[m.MountPath] = volumes[m.Name]
	}
	require.Len(t, mounts, len(volumes))
	require.Equal(t, core.StorageMediumMemory, mounts["/dev/shm"].EmptyDir.Medium)
	secret := slices.IndexFunc(c.Env, func(v core.EnvVar) bool { return v.Name == "OCTET_SECRET_FILE" })
	require.NotEqual(t, -1, secret, "ranks on several machines need a secret")
	require.Equal(t, "secret", path.Base(c.Env[secret].Value), "the key that kubectl create secret --from-file=secret gives")
	require.Equal(t, "octet", mounts[path.Dir(c.Env[secret].Value)].Secret.SecretName)
	require.NotNil(t, mounts["/octet"].PersistentVolumeClaim)

	require.Equal(t, []batch.PodFailurePolicyRule{failOn(c.Name, 2)}, p.spec.PodFailurePolicy.Rules[:1], "wrong input is not repeated")
}

// failOn returns the rule that ends a Job if a container exits with a status.
func failOn(container string, status int32) batch.PodFailurePolicyRule {
	return batch.PodFailurePolicyRule{Action: batch.PodFailurePolicyActionFailJob, OnExitCodes: exits(container, status)}
}

func exits(container string, status int32) *batch.PodFailurePolicyOnExitCodesRequirement {
	return &batch.PodFailurePolicyOnExitCodesRequirement{
		ContainerName: &container, Operator: batch.PodFailurePolicyOnExitCodesOpIn, Values: []int32{status},
	}
}

// requireCommand requires a container's command that a restart continues, on one GPU.
func requireCommand(t *testing.T, command []string, r core.ResourceRequirements) {
	t.Helper()
	requireAccepted(t, command)
	require.Equal(t, "1", r.Limits.Name("nvidia.com/gpu", "").String())
	for _, flag := range []string{"--data", "--out"} {
		i := slices.Index(command, flag)
		require.True(t, strings.HasPrefix(command[i+1], "/octet/"), "%s is on the claim", flag)
	}
}

func TestIndexedJob(t *testing.T) {
	var service core.Service
	var job batch.Job
	decode(t, "indexed-job.yaml", &service, &job)
	requireType(t, service.TypeMeta, core.SchemeGroupVersion.String(), "Service")
	requireType(t, job.TypeMeta, batch.SchemeGroupVersion.String(), "Job")

	require.Equal(t, core.ClusterIPNone, service.Spec.ClusterIP, "pods have names only in a headless service")
	require.True(t, service.Spec.PublishNotReadyAddresses)
	require.NotEmpty(t, service.Spec.Selector)
	for label, value := range maps.All(service.Spec.Selector) {
		require.Equal(t, value, job.Spec.Template.Labels[label])
	}
	require.Equal(t, service.Name, job.Spec.Template.Spec.Subdomain)

	p := pods{job: job.Name, count: job.Spec.Completions, spec: job.Spec, network: service.Name}
	p.requireRanks(t)
	p.requireJob(t)
	c := job.Spec.Template.Spec.Containers[0]
	requireCommand(t, c.Command, c.Resources)
	require.Equal(t, *job.Spec.Completions, *job.Spec.Parallelism, "all ranks run at the same time")
	require.Equal(t, *job.Spec.Completions*10, *job.Spec.BackoffLimit, "a failed rank ends all pods, and each counts")
	require.Equal(t, batch.Failed, *job.Spec.PodReplacementPolicy)
	require.Equal(t, []batch.PodFailurePolicyRule{
		failOn(c.Name, 2),
		{Action: batch.PodFailurePolicyActionIgnore, OnExitCodes: exits(c.Name, 143)},
		{Action: batch.PodFailurePolicyActionIgnore, OnPodConditions: []batch.PodFailurePolicyOnPodConditionsPattern{{
			Type: core.DisruptionTarget, Status: core.ConditionTrue,
		}}},
	}, job.Spec.PodFailurePolicy.Rules)
}

// requireRestarts requires that JobSet starts all ranks again if one fails, unless the input is
// wrong.
func requireRestarts(t *testing.T, s jobset.JobSetSpec) {
	t.Helper()
	require.Equal(t, &jobset.FailurePolicy{
		MaxRestarts:     20,
		RestartStrategy: jobset.BlockingRecreate,
		Rules: []jobset.FailurePolicyRule{{
			Name: "wrongInput", Action: jobset.FailJobSet, OnJobFailureReasons: []string{batch.JobReasonPodFailurePolicy},
		}},
	}, s.FailurePolicy)
	require.True(t, *s.Network.PublishNotReadyAddresses)
	require.Empty(t, s.Network.Subdomain) // then it is the set's name
	require.Len(t, s.ReplicatedJobs, 1)
	job := s.ReplicatedJobs[0].Template.Spec
	require.Zero(t, *job.BackoffLimit, "the Job restarts no single pod")
	require.Len(t, job.PodFailurePolicy.Rules, 1, "a Job that another rule fails would not restart")
}

func TestJobSet(t *testing.T) {
	var set jobset.JobSet
	decode(t, "jobset.yaml", &set)
	requireType(t, set.TypeMeta, jobset.GroupVersion.String(), "JobSet")
	requireRestarts(t, set.Spec)
	require.True(t, *set.Spec.Network.EnableDNSHostnames)
	job := set.Spec.ReplicatedJobs[0]
	require.EqualValues(t, 1, job.Replicas)
	spec := job.Template.Spec
	p := pods{job: set.Name + "-" + job.Name + "-0", count: spec.Completions, spec: spec, network: set.Name}
	p.requireRanks(t)
	p.requireJob(t)
	requireCommand(t, spec.Template.Spec.Containers[0].Command, spec.Template.Spec.Containers[0].Resources)
	require.Equal(t, *spec.Completions, *spec.Parallelism, "all ranks run at the same time")
}

func TestTrainJob(t *testing.T) {
	var runtime trainer.TrainingRuntime
	var job trainer.TrainJob
	decode(t, "trainjob.yaml", &runtime, &job)
	requireType(t, runtime.TypeMeta, trainer.GroupVersion.String(), trainer.TrainingRuntimeKind)
	requireType(t, job.TypeMeta, trainer.GroupVersion.String(), trainer.TrainJobKind)
	require.Equal(t, runtime.Name, job.Spec.RuntimeRef.Name)
	require.Equal(t, trainer.GroupVersion.Group, *job.Spec.RuntimeRef.APIGroup)
	require.Equal(t, trainer.TrainingRuntimeKind, *job.Spec.RuntimeRef.Kind)

	set := runtime.Spec.Template.Spec
	requireRestarts(t, set)
	ranks := set.ReplicatedJobs[0]
	require.Equal(t, kubeflow.Node, ranks.Name)
	require.Equal(t, kubeflow.AncestorTrainer, ranks.Template.Labels[kubeflow.LabelTrainJobAncestor])
	spec := ranks.Template.Spec
	require.Equal(t, kubeflow.Node, spec.Template.Spec.Containers[0].Name)
	// Kubeflow's policy torch adds these variables.
	require.NotNil(t, runtime.Spec.MLPolicy.Torch)
	index := &core.EnvVarSource{FieldRef: &core.ObjectFieldSelector{FieldPath: kubeflow.JobCompletionIndexFieldPath}}
	p := pods{job: job.Name + "-" + ranks.Name + "-0", count: job.Spec.Trainer.NumNodes, spec: spec, network: job.Name, variable: []core.EnvVar{
		{Name: kubeflow.TorchEnvNumNodes, Value: fmt.Sprint(*job.Spec.Trainer.NumNodes)},
		{Name: kubeflow.TorchEnvNumProcPerNode, Value: job.Spec.Trainer.NumProcPerNode.String()},
		{Name: kubeflow.TorchEnvNodeRank, ValueFrom: index},
		{Name: kubeflow.TorchEnvMasterAddr, Value: fmt.Sprintf("%s-%s-0-0.%s", job.Name, kubeflow.Node, job.Name)},
		{Name: kubeflow.TorchEnvMasterPort, Value: fmt.Sprint(kubeflow.ContainerTrainerPort)},
	}}
	p.requireRanks(t)
	p.requireJob(t)
	requireCommand(t, job.Spec.Trainer.Command, *job.Spec.Trainer.ResourcesPerNode)
}
