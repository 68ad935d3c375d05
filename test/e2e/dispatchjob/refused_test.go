package dispatchjob

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dispatch-dev/dispatch/api/v1alpha1"
)

var _ = DescribeTable("A DispatchJob that cannot be sent says why in one condition, and nothing is created:",
	func(ctx SpecContext, namespace, queue, template, reason, message string) {
		const name = "refused"
		apply(ctx, namespace, name, "east", queue, template)
		Eventually(condition).WithArguments(ctx, namespace, name, v1alpha1.SubmittedCondition).Should(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason), HaveField("Message", ContainSubstring(message))))
		Expect(condition(ctx, namespace, name, v1alpha1.ReadyCondition)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason)))
		Expect(east.job(ctx, namespace, name)).To(BeNil())
		_, err := hub.Kubectl(ctx, "delete", "dispatchjob", "-n", namespace, name, "--wait", "--timeout=60s")
		Expect(err).NotTo(HaveOccurred())
	},
	Entry("a kind outside the table", team, "gpu", `{apiVersion: v1, kind: Pod, spec: {}}`, v1alpha1.KindNotSupportedReason, `"Pod" of "v1"`),
	Entry("a kind that is not served", team, "gpu", `{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, spec: {}}`, v1alpha1.KindNotServedReason, "install its CustomResourceDefinition"),
	Entry("no kind", team, "gpu", `{spec: {}}`, v1alpha1.TemplateRefusedReason, "apiVersion and kind are required"),
	Entry("a status", team, "gpu", `{apiVersion: batch/v1, kind: Job, spec: {}, status: {}}`, v1alpha1.TemplateRefusedReason, "template.status"),
	Entry("a key of Kueue's", team, "gpu", `{apiVersion: batch/v1, kind: Job, metadata: {labels: {kueue.x-k8s.io/queue-name: open}}, spec: {}}`, v1alpha1.TemplateRefusedReason, `["kueue.x-k8s.io/queue-name"]`),
	Entry("managedBy", team, "gpu", `{apiVersion: batch/v1, kind: Job, spec: {managedBy: a/b}}`, v1alpha1.TemplateRefusedReason, "template.spec.managedBy"),
	Entry("an owner", team, "gpu", `{apiVersion: batch/v1, kind: Job, metadata: {ownerReferences: []}, spec: {}}`, v1alpha1.TemplateRefusedReason, "template.metadata.ownerReferences"),
	Entry("another namespace", team, "gpu", `{apiVersion: batch/v1, kind: Job, metadata: {namespace: default}, spec: {}}`, v1alpha1.TemplateRefusedReason, "template.metadata.namespace"),
	Entry("a spec that the target finds invalid", team, "gpu", `{apiVersion: batch/v1, kind: Job, spec: {template: {spec: {restartPolicy: Never}}}}`, v1alpha1.TemplateRefusedReason, "the target refuses"),
	Entry("a queue that does not exist", team, "none", template(0), v1alpha1.QueueMismatchReason, "LocalQueue team-a/none does not exist"),
	Entry("a queue that leads elsewhere", team, "open", template(0), v1alpha1.QueueMismatchReason, "leads to ClusterQueue open, not to gpu"),
	Entry("a namespace that is not allowed", outsiders, "gpu", template(0), v1alpha1.NamespaceNotAllowedReason, "does not allow namespace outsiders"),
)
