/*
 * The native part of Frames.java: allocates, by a separate function for each place, and writes down the Java frames
 * that the JVM reports then: a line for each allocation, with the place and the methods, innermost first.
 */
#include <jvmti.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_JAVA_FRAMES 128

static jvmtiEnv *jvmti;
static FILE *output;

#define PLACE(number) \
	__attribute__((noinline)) void *place_##number(void) \
	{ \
		void *volatile block = malloc(10000 + number); \
\
		return block; \
	}

PLACE(0)
PLACE(1)
PLACE(2)
PLACE(3)
PLACE(4)
PLACE(5)
PLACE(6)
PLACE(7)
PLACE(8)
PLACE(9)

static void *(*const places[])(void) = {
	place_0, place_1, place_2, place_3, place_4, place_5, place_6, place_7, place_8, place_9,
};

static void write_method(JNIEnv *env, jmethodID method)
{
	char *name, *signature;
	jclass class;

	if ((*jvmti)->GetMethodName(jvmti, method, &name, NULL, NULL) ||
	    (*jvmti)->GetMethodDeclaringClass(jvmti, method, &class) ||
	    (*jvmti)->GetClassSignature(jvmti, class, &signature, NULL))
		abort();
	fprintf(output, " %s.%s", signature, name);
	(*jvmti)->Deallocate(jvmti, (unsigned char *)name);
	(*jvmti)->Deallocate(jvmti, (unsigned char *)signature);
	(*env)->DeleteLocalRef(env, class);
}

JNIEXPORT jlong JNICALL Java_Frames_allocate(JNIEnv *env, jclass class, jint place)
{
	jvmtiFrameInfo frames[MAX_JAVA_FRAMES];
	jint count = 0;

	if (place < 0)
		return 1;
	if (!places[place]() || (*jvmti)->GetStackTrace(jvmti, NULL, 0, MAX_JAVA_FRAMES, frames, &count))
		abort();
	fprintf(output, "%d", place);
	for (jint number = 0; number < count; number++)
		write_method(env, frames[number].method);
	fprintf(output, "\n");
	fflush(output);
	return 1;
}

JNIEXPORT jlong JNICALL Java_Frames_through(JNIEnv *env, jclass class, jobject next, jint place)
{
	jclass step = (*env)->GetObjectClass(env, next);
	jmethodID go = (*env)->GetMethodID(env, step, "go", "(I)J");
	jlong found = (*env)->CallLongMethod(env, next, go, place);

	(*env)->DeleteLocalRef(env, step);
	return found;
}

JNIEXPORT void JNICALL Java_Frames_open(JNIEnv *env, jclass class, jstring path)
{
	const char *name = (*env)->GetStringUTFChars(env, path, NULL);

	output = fopen(name, "w");
	if (!output)
		abort();
	(*env)->ReleaseStringUTFChars(env, path, name);
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved)
{
	return (*vm)->GetEnv(vm, (void **)&jvmti, JVMTI_VERSION_1_2) ? JNI_ERR : JNI_VERSION_1_8;
}
