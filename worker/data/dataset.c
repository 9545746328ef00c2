#include "worker/data/dataset.h"

void dataset_close(struct dataset *d)
{
    if (d)
        d->ops->close(d);
}
