package deploy_test

import (
	"maps"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	validapps "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	validbatch "k8s.io/kubernetes/pkg/apis/batch/validation"
	received "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	validcore "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	validnetworking "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	validpolicy "k8s.io/kubernetes/pkg/apis/policy/validation"
	podsecurity "k8s.io/pod-security-admission/api"
	securitypolicy "k8s.io/pod-security-admission/policy"
)

// admit says what an API server has against a new object: the code that fills in
// its defaults and judges it is the server's own. Objects of other servers (KEDA's,
// the Prometheus operator's) are not judged.
func admit(t *testing.T, o object) error {
	t.Helper()
	sent, ok := o.typed.(runtime.Object)
	if !ok || !legacyscheme.Scheme.Recognizes(sent.GetObjectKind().GroupVersionKind()) {
		return nil
	}
	sent = sent.DeepCopyObject()
	sent.(meta.Object).SetNamespace("search") // as the request says
	legacyscheme.Scheme.Default(sent)
	all, err := legacyscheme.Scheme.ConvertToVersion(sent, runtime.InternalGroupVersioner)
	if err != nil {
		t.Fatalf("%s: %v", o, err)
	}
	var pods validcore.PodValidationOptions
	var against field.ErrorList
	switch x := all.(type) {
	case *received.ConfigMap:
		against = validcore.ValidateConfigMap(x)
	case *received.Secret:
		against = validcore.ValidateSecret(x)
	case *received.ServiceAccount:
		against = validcore.ValidateServiceAccount(x)
	case *received.Service:
		x.Spec.ClusterIPs = []string{x.Spec.ClusterIP} // by what allots addresses
		against = validcore.ValidateServiceCreate(x)
	case *apps.StatefulSet:
		against = validapps.ValidateStatefulSet(x, validapps.StatefulSetValidationOptions{}, pods)
	case *apps.Deployment:
		against = validapps.ValidateDeployment(x, pods)
	case *batch.Job:
		x.UID, x.Spec.Selector = "1", &meta.LabelSelector{MatchLabels: map[string]string{batch.ControllerUidLabel: "1"}} // by the server
		maps.Copy(x.Spec.Template.Labels, map[string]string{
			batch.ControllerUidLabel: "1", batch.LegacyControllerUidLabel: "1", batch.JobNameLabel: x.Name, batch.LegacyJobNameLabel: x.Name,
		})
		against = validbatch.ValidateJobCreate(x, validbatch.JobValidationOptions{RequirePrefixedLabels: true})
	case *batch.CronJob:
		against = validbatch.ValidateCronJobCreate(x, pods)
	case *policy.PodDisruptionBudget:
		against = validpolicy.ValidatePodDisruptionBudget(x, validpolicy.PodDisruptionBudgetValidationOptions{})
	case *networking.NetworkPolicy:
		against = validnetworking.ValidateNetworkPolicy(x, validnetworking.NetworkPolicyValidationOptions{})
	default:
		t.Fatalf("%s is not judged", o)
	}
	return against.ToAggregate()
}

// restricted says what the "restricted" Pod Security Standard, of the newest
// version, has against a pod.
func restricted(t *testing.T, pod core.PodTemplateSpec) string {
	t.Helper()
	standard, err := securitypolicy.NewEvaluator(securitypolicy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var against []string
	for _, r := range standard.EvaluatePod(podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}, &pod.ObjectMeta, &pod.Spec) {
		if !r.Allowed {
			against = append(against, r.ForbiddenReason+": "+r.ForbiddenDetail)
		}
	}
	return strings.Join(against, "; ")
}
