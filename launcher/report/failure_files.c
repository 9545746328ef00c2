/* Has the files of a failure report written (failure_files.h). */
#include "launcher/report/failure_files.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "launcher/output/log_layout.h"
#include "launcher/output/logmux.h"
#include "launcher/report/failure.h"
#include "launcher/report/failure_report.h"

typedef void write_fn(struct logmux *m, const char *path, const char *text, size_t n);

static void write_text(const struct failure_report_options *o, write_fn *write, const char *path, const char *text)
{
    struct buf line;
    buf_init(&line, 0);
    if (buf_printf(&line, "%s\n", text) == 0)
        write(o->mux, path, line.data, line.len);
    buf_free(&line);
}

bool failure_files_write(const struct failure_report_options *o, const struct failure_job *job, const cJSON *all,
                         bool of_job, char ret[FAILURE_FILES_MAX])
{
    char path[LOG_PATH_MAX] = "";
    const bool logs = of_job && o->logs->root[0], file = of_job && o->failure_file;
    const bool is_one = file && o->error_file && strcmp(o->failure_file, o->error_file) == 0; /* the report has more */
    const bool record = o->error_file && !is_one && (all->child || job->cause[0]);
    char *report = logs || file ? failure_json(job, all) : NULL;
    char *of_culprit = record ? failure_record_json(job, all) : NULL;
    if (logs)
        snprintf(path, sizeof path, "%s/failure.json", o->logs->root);
    if (report && logs)
        write_text(o, logmux_write_log, path, report);
    if (report && file)
        write_text(o, logmux_write_file, o->failure_file, report);
    if (of_culprit)
        write_text(o, logmux_write_file, o->error_file, of_culprit);
    snprintf(ret, FAILURE_FILES_MAX, "%s%s%s%s%s", path, logs && (file || record) ? " or of " : "",
             file ? "--failure-file" : "", file && record ? " or of " : "", record ? o->error_file : "");
    const bool written = report || of_culprit;
    free(report);
    free(of_culprit);
    return written;
}
