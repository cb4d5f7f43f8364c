// Package deploy holds scripts and manifests that start Octet's ranks under Slurm and
// Kubernetes. Its tests decode the manifests with the types of Kubernetes, JobSet and Kubeflow
// Trainer. It is a module of its own, so that Octet does not need them.
package deploy
