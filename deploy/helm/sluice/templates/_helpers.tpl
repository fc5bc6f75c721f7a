{{- define "sluice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "sluice.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "sluice.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "sluice.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ include "sluice.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "sluice.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "sluice.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "sluice.adminSecret" -}}
{{- .Values.admin.existingSecret | default (printf "%s-admin" (include "sluice.fullname" .)) -}}
{{- end -}}

{{/* The configuration with what the chart sets. */}}
{{- define "sluice.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $admin := dict "address" (printf "0.0.0.0:%v" .Values.admin.port) "token_file" "/etc/sluice/admin/token" -}}
{{- $_ := set $config "admin" (merge $admin (get $config "admin" | default dict)) -}}
{{- if .Values.staticMembership -}}
{{- $_ := set $config "kafka" (merge (dict "instance_id" "${env:POD_NAME}") (get $config "kafka" | default dict)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Seconds of a duration such as 30s, 1m30s or 500ms, rounded up. */}}
{{- define "sluice.seconds" -}}
{{- if not (regexMatch "^([0-9]+(\\.[0-9]+)?(h|m|s|ms))+$" .) -}}
{{- fail (printf "config.shutdown_timeout: %q is no duration such as 30s or 1m30s" .) -}}
{{- end -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(h|ms|m|s)" . -1 -}}
{{- $n := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $total = addf $total (mulf $n (get (dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001) $unit)) -}}
{{- end -}}
{{- ceil $total | int -}}
{{- end -}}

{{/* What is spoken on the admin port. */}}
{{- define "sluice.protocol" -}}
{{- if dig "admin" "tls" "cert_file" "" .Values.config }}https{{ else }}http{{ end -}}
{{- end -}}

{{/* What probes say of the admin port, where it has a certificate. */}}
{{- define "sluice.scheme" -}}
{{- if eq (include "sluice.protocol" .) "https" }}, scheme: HTTPS{{ end -}}
{{- end -}}

{{- define "sluice.grace" -}}
{{- add (include "sluice.seconds" (.Values.config.shutdown_timeout | default "30s") | int) .Values.graceSeconds -}}
{{- end -}}

{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "sluice.environment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
# The node's zone, where the cluster copies its label to pods; else empty.
- name: POD_ZONE
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A volume's name is shorter than a Secret's may be, and has no dots. */}}
{{- define "sluice.secretVolume" -}}
{{- printf "secret-%s" (. | replace "." "-") | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "sluice.mounts" -}}
- {name: config, mountPath: /etc/sluice/config, readOnly: true}
- {name: admin, mountPath: /etc/sluice/admin, readOnly: true}
{{- range .Values.secrets }}
- {name: {{ include "sluice.secretVolume" .name }}, mountPath: {{ printf "/etc/sluice/secrets/%s" .name }}, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sluice.volumes" -}}
- name: config
  configMap: {name: {{ include "sluice.fullname" . }}}
- name: admin
  secret: {secretName: {{ include "sluice.adminSecret" . }}, defaultMode: 0440}
{{- range .Values.secrets }}
- name: {{ include "sluice.secretVolume" .name }}
  secret: {secretName: {{ .name }}, defaultMode: 0440}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The spec of a migration's Job. It may be killed at any time: what is done
stands in the control index, and the next pod goes on from there. */}}
{{- define "sluice.migration" -}}
# A pod that failed is followed by another, after up to ten minutes.
backoffLimit: 1000
podFailurePolicy: {{- include "sluice.podFailurePolicy" . | nindent 2 }}
parallelism: {{ .Values.migration.parallelism }}
completions: {{ .Values.migration.parallelism }}
template:
  metadata:
    labels:
      app.kubernetes.io/name: {{ include "sluice.name" . }}-migration
      app.kubernetes.io/instance: {{ .Release.Name }}
    annotations:
      checksum/config: {{ include "sluice.config" . | sha256sum }}
  spec:
    {{- include "sluice.jobPod" (dict "root" . "resources" .Values.migration.resources "args" (list "migrate" "run" "-c" "/etc/sluice/config/sluice.yaml" "--job" .Values.migration.job)) | nindent 4 }}
{{- end -}}

{{/* What becomes of a Job with a pod that failed. */}}
{{- define "sluice.podFailurePolicy" -}}
rules:
  # Neither a wrong configuration (78) nor a wrong call (2) is healed by another try.
  - action: FailJob
    onExitCodes: {containerName: sluice, operator: In, values: [2, 78]}
  # A node that is drained or lost is no failure of the Job.
  - action: Ignore
    onPodConditions: [{type: DisruptionTarget, status: "True"}]
{{- end -}}

{{/* What the pods of jobs share: arguments are (dict "root" $ "args" list "resources" dict). */}}
{{- define "sluice.jobPod" -}}
{{- $ := .root -}}
restartPolicy: Never
serviceAccountName: {{ include "sluice.serviceAccount" $ }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- include "sluice.podSecurity" $ | nindent 2 }}
containers:
  - name: sluice
    image: {{ include "sluice.image" $ }}
    imagePullPolicy: {{ $.Values.image.pullPolicy }}
    args: {{- toYaml .args | nindent 6 }}
    env: {{- include "sluice.environment" $ | nindent 6 }}
    securityContext: {{- include "sluice.containerSecurity" $ | nindent 6 }}
    resources: {{- toYaml .resources | nindent 6 }}
    volumeMounts: {{- include "sluice.mounts" $ | nindent 6 }}
volumes: {{- include "sluice.volumes" $ | nindent 2 }}
{{- with $.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
