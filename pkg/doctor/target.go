package doctor

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// vitalsLabel is the label of the chart's objects.
const vitalsLabel = "app.kubernetes.io/name=kube-vitals"

// target is the server that is examined: kube-vitals if it is installed, or else the one that the
// APIServices lead to.
type target struct {
	kind            Kind
	namespace, name string // of the Service
	port            int32  // of the Service
	version         string // the tag of the image
	hidden          bool   // there may be a server, but the user may not find it
}

func (t target) is(namespace, name string) bool { return t.namespace == namespace && t.name == name }

func (t target) String() string { return t.namespace + "/" + t.name }

// findServer sets the target. It returns a check if there are Services with the label of kube-vitals,
// but none can be chosen.
func (d *doctor) findServer(ctx context.Context) []Check {
	labeled, err := d.services(ctx)
	for _, version := range versions() {
		a := d.apiServices[version]
		if a == nil || a.Spec.Service == nil {
			continue
		}
		to := target{namespace: a.Spec.Service.Namespace, name: a.Spec.Service.Name, port: a.port()}
		if slices.ContainsFunc(labeled, func(s corev1.Service) bool { return to.is(s.Namespace, s.Name) }) {
			to.kind = KubeVitals
		} else {
			to.kind = KindByName(to.name)
		}
		if d.target.kind == "" || d.target.kind != KubeVitals && to.kind == KubeVitals {
			d.target = to
		}
	}
	if d.target.kind == "" {
		d.target = target{kind: None, hidden: err != nil}
	}
	if d.target.kind == KubeVitals || len(labeled) == 0 {
		return nil
	}
	return d.chooseServer(ctx, labeled)
}

// chooseServer sets the target to the Service of kube-vitals to which no APIService leads. The cure
// leads the metrics API to it, so it must not be one that a tenant has created.
func (d *doctor) chooseServer(ctx context.Context, labeled []corev1.Service) []Check {
	c := Check{ID: "installation", Title: "installation"}
	installed, err := d.installed(ctx, labeled)
	shown := installed
	switch {
	case err != nil:
		d.target.hidden = true
		shown, c = labeled, Denied(c, err)
		c.Seen = "not examined: Services with the label " + vitalsLabel + ", because it is not known whether a " +
			"release has installed them: " + c.Seen
		c.Cure = cures()[serverUnconfirmed]
	case len(installed) == 1:
		s := installed[0]
		d.target = target{kind: KubeVitals, namespace: s.Namespace, name: s.Name, port: defaultServicePort}
		if len(s.Spec.Ports) > 0 {
			d.target.port = s.Spec.Ports[0].Port
		}
		return nil
	case len(installed) > 1:
		c.Status, c.Reason = Warning, serverAmbiguous
		c.Seen = "not examined: several Services of kube-vitals, because no APIService leads to one of them"
	default:
		shown, c.Status, c.Reason = labeled, Skipped, serverUnconfirmed
		c.Seen = "not examined: Services with the label " + vitalsLabel + ", because no ClusterRoleBinding " +
			"system:SERVICE with this label has a ServiceAccount of their namespace"
	}
	for i := range shown {
		c.Objects = append(c.Objects, objectName(shown[i].Namespace, shown[i].Name))
	}
	return []Check{c}
}

// installed returns those of the Services that a tenant cannot have created: the ones in the
// configured namespace, or else the ones for which their release has a ClusterRoleBinding.
func (d *doctor) installed(ctx context.Context, labeled []corev1.Service) ([]corev1.Service, error) {
	if d.Namespace != "" {
		return labeled, nil
	}
	list, err := d.kube.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{LabelSelector: vitalsLabel})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(labeled), func(s corev1.Service) bool {
		return !slices.ContainsFunc(list.Items, func(b rbacv1.ClusterRoleBinding) bool {
			return b.Name == "system:"+s.Name && slices.ContainsFunc(b.Subjects, func(subject rbacv1.Subject) bool {
				return subject.Kind == rbacv1.ServiceAccountKind && subject.Namespace == s.Namespace
			})
		})
	}), nil
}

// services returns the Services with the label, of all namespaces unless one is configured. Who may
// not list those gets the ones of kube-system.
func (d *doctor) services(ctx context.Context) ([]corev1.Service, error) {
	options := metav1.ListOptions{LabelSelector: vitalsLabel}
	list, err := d.kube.CoreV1().Services(d.Namespace).List(ctx, options)
	if apierrors.IsForbidden(err) && d.Namespace == "" {
		list, err = d.kube.CoreV1().Services(metav1.NamespaceSystem).List(ctx, options)
	}
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// KindByName recognizes a server by the name of its Service or image.
func KindByName(name string) Kind {
	for _, kind := range []Kind{KubeVitals, MetricsServer} {
		if strings.Contains(name, string(kind)) {
			return kind
		}
	}
	return Other
}
