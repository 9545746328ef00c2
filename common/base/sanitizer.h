/* Which sanitizers this is built with, 0 or 1. Sanitizers know one stack per thread and one table of descriptors per
 * process; a program that uses more has to do without in such a build. */
#ifndef COMMON_BASE_SANITIZER_H
#define COMMON_BASE_SANITIZER_H

#if defined(__has_feature) /* clang's word for it */
#define SANITIZER_HAS(feature) __has_feature(feature)
#else
#define SANITIZER_HAS(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || SANITIZER_HAS(address_sanitizer)
#define HAS_ADDRESS_SANITIZER 1
#else
#define HAS_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || SANITIZER_HAS(thread_sanitizer)
#define HAS_THREAD_SANITIZER 1
#else
#define HAS_THREAD_SANITIZER 0
#endif

#endif
